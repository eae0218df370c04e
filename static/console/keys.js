/* Keyboard shortcuts: j and k move through the rows of a list, Enter opens the row, x selects it; / searches, g and a
   letter opens a page of the sidebar, the arrow keys move along the bars of a chart, and ? shows all of them. None of
   them works while a field has the focus. */
(() => {
    'use strict';

    const SECOND_KEY_MS = 1500;
    let goingSince = 0;

    const isTyping = (target) => target instanceof Element
        && target.closest('input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable], [role=combobox], dialog') !== null;
    // The list of the page or, on other pages, the rows of its tables.
    const kind = () => document.getElementById('result_list') ? '#result_list tbody > tr:first-child' : 'main .c-table tbody > tr';
    const rows = () => [...document.querySelectorAll(kind())].filter((row) => row.querySelector('a[href]'));
    const current = () => document.querySelector('.c-current-row');

    const enter = (row) => {
        current()?.classList.remove('c-current-row');
        row.classList.add('c-current-row');
        // The link has the focus, so that Enter opens it and screen readers read it.
        row.querySelector('th a[href], .c-list-time a[href], td:not(.c-list-open) a[href]').focus({ preventScroll: true });
        row.scrollIntoView({ block: 'nearest' });
    };

    const move = (step) => {
        const all = rows();
        if (!all.length) return false;
        const focused = document.activeElement.closest(kind()) || current();
        const next = all.indexOf(focused) + step;
        enter(all[Math.min(Math.max(next, 0), all.length - 1)]);
        return true;
    };

    const select = () => {
        const box = (document.activeElement.closest('#result_list tr') || current())?.querySelector('.action-select');
        box?.click();
        return Boolean(box);
    };

    const search = () => {
        const field = document.getElementById('searchbar');
        if (field) field.focus();
        else window.dispatchEvent(new CustomEvent('opencommand'));
        return true;
    };

    const openFilters = () => {
        const filters = document.getElementById('changelist-filter');
        if (!filters) return false;
        filters.open = true;
        filters.querySelector('summary').focus();
        return true;
    };

    const showHelp = () => {
        const dialog = document.getElementById('shortcuts');
        if (!dialog) return false;
        const list = dialog.querySelector('[data-shortcut-pages]');
        if (!list.childElementCount) {
            for (const link of document.querySelectorAll('#nav-sidebar [data-key]')) {
                const line = document.createElement('div');
                const keys = document.createElement('dt');
                for (const name of ['g', link.dataset.key]) {
                    const key = document.createElement('kbd');
                    key.textContent = name;
                    keys.append(key, ' ');
                }
                const title = document.createElement('dd');
                title.textContent = link.querySelector('span:not([aria-hidden])').textContent;
                line.append(keys, title);
                list.append(line);
            }
        }
        dialog.showModal();
        return true;
    };

    const go = (key) => {
        const link = document.querySelector(`#nav-sidebar [data-key="${CSS.escape(key)}"]`);
        if (link) location.assign(link.href);
        return Boolean(link);
    };

    /* A chart is one stop of the Tab key, so that its bars do not stand between the user and the rest of the page. */
    const moveInChart = (event) => {
        const bar = event.target.closest('.c-plot svg > [tabindex]');
        if (!bar) return false;
        const bars = [...bar.parentElement.querySelectorAll(':scope > [tabindex]')];
        const places = { ArrowLeft: bars.indexOf(bar) - 1, ArrowRight: bars.indexOf(bar) + 1, Home: 0, End: bars.length - 1 };
        const next = bars[places[event.key]];
        if (!next) return event.key in places;
        bar.setAttribute('tabindex', '-1');
        next.setAttribute('tabindex', '0');
        next.focus();
        return true;
    };

    const start = () => { goingSince = performance.now(); return true; };
    const KEYS = { j: () => move(1), k: () => move(-1), x: select, f: openFilters, g: start, '/': search, '?': showHelp };

    document.addEventListener('keydown', (event) => {
        if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
        if (isTyping(event.target) || document.querySelector('dialog[open]')) return;
        if (moveInChart(event)) {
            event.preventDefault();
            return;
        }
        const isSecond = goingSince && performance.now() - goingSince < SECOND_KEY_MS;
        goingSince = 0;
        if (isSecond ? go(event.key) : KEYS[event.key]?.()) event.preventDefault();
    });
    document.addEventListener('focusin', (event) => {
        if (!event.target.closest('.c-current-row')) current()?.classList.remove('c-current-row');
    });
})();
