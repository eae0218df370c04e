/* Frame of each page: the groups of the sidebar, the filters of lists, and menus of rows. */
(() => {
    'use strict';

    const STORED = 'consoleNavigation';
    const read = () => {
        try {
            return JSON.parse(localStorage.getItem(STORED)) || {};
        } catch {
            return {};
        }
    };

    /* Groups stay as the user left them; the group of the open page is always open. */
    const restoreGroups = () => {
        const states = read();
        for (const group of document.querySelectorAll('.c-nav-group')) {
            const name = group.dataset.group;
            if (name in states) group.open = states[name] || 'current' in group.dataset;
            group.querySelector('summary').addEventListener('click', () => {
                localStorage.setItem(STORED, JSON.stringify({ ...read(), [name]: !group.open }));
            });
        }
        // Not with scrollIntoView, after which Tab would continue from there instead of from the skip link.
        const list = document.querySelector('.c-nav');
        const active = list?.querySelector('.active');
        if (active && active.offsetTop > list.offsetTop + list.clientHeight) list.scrollTop = active.offsetTop - list.offsetTop;
    };

    /* The filters search teams and keys with jQuery and Select2, which other pages need not load. */
    const loadFilters = (filters) => {
        const urls = (name) => (filters.dataset[name] || '').split(' ').filter(Boolean);
        for (const url of urls('styles')) {
            const link = Object.assign(document.createElement('link'), { rel: 'stylesheet', href: url });
            document.head.append(link);
        }
        for (const url of urls('scripts')) {
            // Without `async` they run in their order.
            const script = Object.assign(document.createElement('script'), { src: url, async: false });
            document.head.append(script);
        }
        delete filters.dataset.styles;
        delete filters.dataset.scripts;
    };

    /* Few pages show JSON, so the others do not load its viewer. */
    const viewer = document.currentScript?.dataset.jsonViewer;
    const loadViewer = () => {
        if (loadViewer.isDone || !document.querySelector('[data-json], [data-json-open], [data-json-load]')) return;
        loadViewer.isDone = true;
        document.head.append(Object.assign(document.createElement('script'), { src: viewer }));
    };
    document.addEventListener('DOMContentLoaded', loadViewer);
    document.addEventListener('htmx:afterSettle', loadViewer);

    const place = (menu) => {
        const button = menu.previousElementSibling.getBoundingClientRect();
        const box = menu.getBoundingClientRect();
        const below = button.bottom + 4;
        const top = below + box.height > innerHeight ? button.top - box.height - 4 : below;
        menu.style.top = `${Math.max(4, top)}px`;
        menu.style.left = `${Math.max(4, button.right - box.width)}px`;
    };

    // Rows that are added to a form get new ids, so their buttons do not name the menu by its id.
    document.addEventListener('focusin', ({ target }) => {
        if (target.matches('.c-related')) target.popoverTargetElement = target.nextElementSibling;
    });
    // `toggle` does not bubble.
    document.addEventListener('toggle', (event) => {
        if (event.target.id === 'changelist-filter' && event.target.open) loadFilters(event.target);
        if (event.target.matches('.c-row-actions') && event.newState === 'open') place(event.target);
    }, true);
    document.addEventListener('scroll', () => {
        document.querySelectorAll('.c-row-actions:popover-open').forEach((menu) => menu.hidePopover());
    }, true);
    document.addEventListener('keydown', (event) => {
        const filters = document.getElementById('changelist-filter');
        if (event.key !== 'Escape' || !filters?.open) return;
        filters.open = false;
        filters.querySelector('summary').focus();
    });

    /* A button that htmx disables during its request loses the focus. It gets it back unless the user moved on. */
    const focused = new WeakMap();
    document.addEventListener('htmx:beforeRequest', (event) => {
        const element = document.activeElement;
        if (event.detail.elt.contains(element)) focused.set(event.detail.elt, element);
    });
    document.addEventListener('htmx:afterRequest', (event) => {
        const element = focused.get(event.detail.elt);
        focused.delete(event.detail.elt);
        if (!element || document.activeElement !== document.body) return;
        const shown = element.isConnected ? element : document.getElementById(element.id);
        shown?.focus({ preventScroll: true });
    });

    /* Chromium does not always apply `autofocus` to the page that answers a form. A field with an error comes first. */
    const focusField = () => {
        if (document.activeElement !== document.body || location.hash) return;
        const wrong = '[aria-invalid="true"]';
        const fields = [...document.querySelectorAll(`main :is(input, select, textarea):is(${wrong}, ${wrong} *, [autofocus])`)];
        const shown = fields.filter((field) => field.checkVisibility());
        (shown.find((field) => field.matches(`${wrong}, ${wrong} *`)) || shown[0])?.focus();
    };
    document.addEventListener('DOMContentLoaded', () => {
        restoreGroups();
        focusField();
    });
})();
