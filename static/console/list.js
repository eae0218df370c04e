'use strict';
/* Rows of the response list open to show the items of their response. */
(() => {
    document.addEventListener('DOMContentLoaded', () => {
        for (const button of document.querySelectorAll('.c-list-open button')) {
            button.setAttribute('aria-label', 'Show the items of this response');
            button.setAttribute('aria-expanded', 'false');
        }
    });
    document.addEventListener('click', (event) => {
        const button = event.target.closest('.c-list-open button');
        if (!button) return;
        const row = button.closest('tr');
        const wasOpen = button.getAttribute('aria-expanded') === 'true';
        button.setAttribute('aria-expanded', String(!wasOpen));
        const below = row.nextElementSibling;
        if (below) {
            below.hidden = wasOpen;
            return;
        }
        const opened = row.parentElement.insertRow();
        const cell = opened.insertCell();
        opened.className = 'c-list-items';
        cell.colSpan = row.cells.length;
        cell.setAttribute('aria-live', 'polite');
        cell.textContent = 'Loading…';
        const link = row.querySelector('.c-list-time a').getAttribute('href');
        htmx.ajax('GET', link.replace(/change\/$/, 'summary/'), { target: cell, swap: 'innerHTML' });
    });
})();
