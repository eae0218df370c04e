/* Accessible names for controls that the theme leaves unnamed: the boxes of Select2, which hide the labelled select, the
   popups that these open, and fields of tabular forms, whose only label is the heading of their column. */
(() => {
    'use strict';

    const heading = (control) => {
        const cell = control.closest('td');
        const table = cell && cell.closest('table');
        const head = table && table.tHead && table.tHead.rows[0] && table.tHead.rows[0].cells[cell.cellIndex];
        return ((cell && cell.dataset.label) || (head && head.textContent) || '').trim().replace(/:$/, '');
    };

    const nameOf = (control) => {
        const label = control.labels && [...control.labels].find((each) => each.textContent.trim());
        return control.getAttribute('aria-label') || (label && label.textContent.trim().replace(/\*$/, '')) || heading(control)
            || control.name.split('-').pop().replaceAll('_', ' ');
    };

    const name = (root) => {
        for (const control of root.querySelectorAll('select, td input:not([type=hidden]), td textarea')) {
            if (!control.labels || ![...control.labels].some((each) => each.textContent.trim())) {
                control.setAttribute('aria-label', nameOf(control));
            }
            const box = control.nextElementSibling;
            for (const part of box ? box.querySelectorAll('.select2-selection, .select2-selection__rendered') : []) {
                part.setAttribute('aria-label', nameOf(control));
            }
        }
    };

    /* Select2 appends its popup to the page, without a name and without a reference from the box that opened it. */
    const namePopup = (popup) => {
        const box = document.querySelector('.select2-container--open .select2-selection');
        const list = popup.querySelector('.select2-results__options');
        if (!box || !list) return;
        const title = box.getAttribute('aria-label') || 'Choices';
        popup.id = `${list.id}-popup`;
        popup.setAttribute('role', 'dialog');
        popup.setAttribute('aria-label', title);
        list.setAttribute('aria-label', title);
        box.setAttribute('aria-haspopup', 'dialog');
        box.setAttribute('aria-controls', popup.id);
        popup.querySelector('.select2-search__field')?.setAttribute('aria-label', `Search ${title}`);
    };

    // Select2 creates its boxes after the page has loaded, and users add rows to tabular forms.
    const watcher = new MutationObserver((changes) => {
        for (const change of changes) {
            for (const node of change.addedNodes) {
                if (node.nodeType !== 1) continue;
                if (node.matches('.select2-container, tr')) name(node.parentElement || node);
                const popup = node.querySelector('.select2-dropdown');
                if (popup) namePopup(popup);
            }
        }
    });

    document.addEventListener('DOMContentLoaded', () => {
        name(document);
        watcher.observe(document.body, { childList: true, subtree: true });
    });
})();
