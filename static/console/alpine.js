/* Functions and state for the expressions in attributes. Alpine's CSP build evaluates them without the names of the window,
   and understands neither functions nor several statements. */
(() => {
    'use strict';

    const SHOWN_FOR = 1500;

    /* A button that copies a text and says so: for a moment, or from then on. */
    const copyable = (remains = false) => ({
        copied: false,
        async copy(text, element) {
            try {
                await navigator.clipboard.writeText(text);
            } catch {
                // Pages that are not served over HTTPS have no clipboard, and users may refuse it.
                getSelection().selectAllChildren(element);
                return;
            }
            this.copied = true;
            if (!remains) setTimeout(() => { this.copied = false; }, SHOWN_FOR);
        },
    });

    /* A page that shows a new secret. Reloading it would create another one, so its address becomes that of the object. */
    const newSecret = (url) => ({
        ...copyable(true),
        init() {
            history.replaceState(null, '', url);
        },
    });

    /* State of every page, which the template `skeleton.html` of Unfold defines in attributes. */
    const page = (tab) => ({
        activeTab: tab === undefined ? '' : window.getCurrentTab() || tab,
        sidebarMobileOpen: false,
        sidebarDesktopOpen: localStorage.getItem('sidebarDesktopOpen') !== '0',
        // What forms and numbers of pages in Unfold's templates use of the window.
        window: {
            location: {
                get pathname() { return location.pathname; },
                get search() { return location.search; },
                get hash() { return location.hash; },
                set href(url) { location.assign(url); },
            },
        },
        init() {
            this.$watch('sidebarDesktopOpen', (open) => localStorage.setItem('sidebarDesktopOpen', open ? '1' : '0'));
        },
    });

    document.addEventListener('alpine:init', () => {
        const { Alpine, theme, searchCommand, searchForm } = window;
        for (const component of [copyable, newSecret, page, theme, searchCommand, searchForm]) {
            Alpine.data(component.name, component);
        }
    });
})();
