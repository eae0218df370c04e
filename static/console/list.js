'use strict';
/* Expandable rows of lists: the theme only handles clicks on the cell; this makes it a button for the keyboard too. */
(() => {
    const cells = document.querySelectorAll('#result_list td[data-label="Expand row"]');
    for (const cell of cells) {
        const row = cell.closest('tbody');
        cell.setAttribute('role', 'button');
        cell.setAttribute('tabindex', '0');
        cell.setAttribute('aria-label', 'Show the items of this response');
        cell.setAttribute('aria-expanded', 'false');
        cell.addEventListener('click', () => {
            cell.setAttribute('aria-expanded', String(cell.getAttribute('aria-expanded') !== 'true'));
        });
        cell.addEventListener('keydown', (event) => {
            if (event.key === 'Enter' || event.key === ' ') {
                event.preventDefault();
                cell.click();
                row.scrollIntoView({ block: 'nearest' });
            }
        });
    }
})();
