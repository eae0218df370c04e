/* The page of a response: selection of tabs and arrow keys (htmx or the link loads the panel), and links that copy the
   document they point to. */
(function () {
    'use strict';

    const tabOf = (target) => (target instanceof Element ? target.closest('.c-trace-tabs [role="tab"]') : null);

    /** On a narrow screen the tabs scroll: bring the selected one into view. */
    const reveal = (tab) => {
        const line = tab.parentElement;
        line.scrollLeft = tab.offsetLeft - line.offsetLeft - (line.clientWidth - tab.offsetWidth) / 2;
    };

    const select = (tab) => {
        reveal(tab);
        for (const other of tab.parentElement.querySelectorAll('[role="tab"]')) {
            other.setAttribute('aria-selected', String(other === tab));
            other.tabIndex = other === tab ? 0 : -1;
        }
        const panel = document.getElementById(tab.getAttribute('aria-controls'));
        if (panel) {
            panel.setAttribute('aria-labelledby', tab.id);
        }
    };

    document.addEventListener('DOMContentLoaded', () => {
        document.querySelectorAll('.c-trace-tabs [aria-selected="true"]').forEach(reveal);
    });

    document.addEventListener('htmx:beforeRequest', (event) => {
        const tab = tabOf(event.target);
        if (tab) {
            select(tab);
        }
    });

    document.addEventListener('keydown', (event) => {
        const tab = tabOf(event.target);
        const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
        if (!tab || step === undefined) {
            return;
        }
        const tabs = [...tab.parentElement.querySelectorAll('[role="tab"]')];
        const place = Number.isFinite(step)
            ? (tabs.indexOf(tab) + step + tabs.length) % tabs.length
            : step < 0 ? 0 : tabs.length - 1;
        event.preventDefault();
        tabs[place].focus();
        tabs[place].scrollIntoView({ block: 'nearest', inline: 'nearest' });
    });

    // The tabs are links, which Space does not activate; tabs must react to it.
    document.addEventListener('keyup', (event) => {
        const tab = tabOf(event.target);
        if (tab && event.key === ' ') {
            tab.click();
        }
    });
    document.addEventListener('keydown', (event) => {
        if (event.key === ' ' && tabOf(event.target)) {
            event.preventDefault();
        }
    });

    document.addEventListener('click', async (event) => {
        const link = event.target instanceof Element ? event.target.closest('a[data-copy-url]') : null;
        if (!link || event.ctrlKey || event.metaKey || event.shiftKey || !navigator.clipboard) {
            return;
        }
        event.preventDefault();
        const word = link.querySelector('[data-copy-word]');
        word.dataset.before ||= word.textContent;
        try {
            const answer = await fetch(link.dataset.copyUrl);
            if (!answer.ok) {
                throw new Error(String(answer.status));
            }
            await navigator.clipboard.writeText(await answer.text());
            word.textContent = 'Copied';
        } catch {
            word.textContent = 'Copy failed';
        }
        word.setAttribute('role', 'status');
        setTimeout(() => { word.textContent = word.dataset.before; }, 2000);
    });
})();
