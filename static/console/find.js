// A URL that ends in #<item id> scrolls to that item and opens the cards that contain it.
(() => {
    'use strict';

    const find = (id) => {
        const name = CSS.escape(id);
        const named = document.querySelector(`[data-item-id="${name}"], [data-call-id="${name}"]`) || document.getElementById(id);
        if (named) return named;
        const code = [...document.querySelectorAll('code.c-id, .c-entry code')].find((each) => each.textContent.trim() === id);
        return code ? code.closest('.c-entry') || code : null;
    };

    const jump = () => {
        let id;
        try {
            id = decodeURIComponent(location.hash.slice(1));
        } catch {
            return;
        }
        if (!/^[A-Za-z0-9_.-]{4,255}$/.test(id)) return;
        const place = find(id);
        // The skip link leads to the beginning of the content; this would show its middle.
        if (!place || place.matches('main')) return;
        for (let box = place.closest('details'); box; box = box.parentElement && box.parentElement.closest('details')) box.open = true;
        document.querySelectorAll('.c-found').forEach((each) => each.classList.remove('c-found'));
        place.classList.add('c-found');
        place.scrollIntoView({ block: 'center' });
    };

    if (document.readyState === 'loading') document.addEventListener('DOMContentLoaded', jump);
    else jump();
    window.addEventListener('hashchange', jump);

    // Enter in the command palette opens the page of an id, without waiting for results, or else the first result.
    document.addEventListener('keydown', (event) => {
        const box = event.target;
        if (event.key !== 'Enter' || box.id !== 'search-input-command') return;
        if (document.querySelector('#command-results-list .active')) return;
        event.preventDefault();
        event.stopImmediatePropagation();
        const value = box.value.trim();
        if (/^([a-z]+_[0-9a-v]{20,36}|file-[0-9a-v]{20,36}|chatcmpl[-_]\w+|call_\w+|sk-[\w…-]+)$/.test(value)) {
            location.assign(new URL('../go/' + encodeURIComponent(value), new URL(box.getAttribute('hx-get'), location.href)));
            return;
        }
        const first = document.querySelector('#command-results-list a');
        if (first && value) location.assign(first.href);
    }, true);
})();
