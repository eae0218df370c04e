'use strict';
/* Tooltips with the full text of what cells of lists, entries of panels and legends of charts cut with an ellipsis. */
(() => {
    const isCut = (box) => getComputedStyle(box).overflowX === 'hidden'
        && (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight + 2);

    document.addEventListener('pointerover', ({ target }) => {
        const frame = target.closest('td, th, li, dd, figcaption > span');
        for (let box = frame && target; box && frame.contains(box); box = box.parentElement) {
            if (!box.title && isCut(box)) box.title = box.innerText.trim();
        }
    });
})();
