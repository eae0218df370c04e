/* Transcripts: copy buttons, keyboard navigation, and loading the rest of long texts, which are inserted as text only. */
(() => {
    'use strict';

    const SHOWN_FOR = 1500;

    async function copy(button) {
        const scope = button.closest('.c-piece, .c-entry');
        const texts = [...(scope?.querySelectorAll('[data-text]') ?? [])].map((element) => element.textContent);
        const icon = button.querySelector('.material-symbols-outlined');
        try {
            await navigator.clipboard.writeText(texts.join('\n\n'));
            icon.textContent = 'check';
        } catch {
            icon.textContent = 'error';
        }
        setTimeout(() => { icon.textContent = 'content_copy'; }, SHOWN_FOR);
    }

    async function loadMore(link) {
        const box = link.closest('.c-long');
        const left = box.querySelector('[data-left]');
        if (link.getAttribute('aria-busy') === 'true') return;
        link.setAttribute('aria-busy', 'true');
        try {
            const answer = await fetch(link.href, { credentials: 'same-origin' });
            if (!answer.ok || !answer.headers.get('Content-Type').startsWith('text/plain')) throw new Error(answer.status);
            const text = await answer.text();
            box.querySelector('[data-text]').append(text);
            const next = answer.headers.get('X-Next');
            if (next === null) {
                box.querySelector('.c-more').remove();
                return;
            }
            const url = new URL(link.href);
            url.searchParams.set('from', next);
            link.href = url.href;
            const rest = Number(answer.headers.get('X-Total')) - Number(next);
            left.textContent = rest.toLocaleString('en');
        } catch {
            link.textContent = 'Loading failed. Try again';
        } finally {
            link.removeAttribute('aria-busy');
        }
    }

    const ENTRIES = '[data-item-id].c-entry';

    function scroller() {
        let box = document.querySelector('[data-chat]')?.parentElement;
        while (box && !(/auto|scroll/.test(getComputedStyle(box).overflowY) && box.scrollHeight > box.clientHeight)) {
            box = box.parentElement;
        }
        return box ?? document.scrollingElement;
    }

    /* find.js scrolls to an item that is on the page. An id after the # that is not may belong to an earlier item: ask the
       server for the page around it. */
    function openAt(id) {
        const name = CSS.escape(id);
        if (document.querySelector(`[data-item-id="${name}"], [data-call-id="${name}"]`)) return;
        const url = new URL(location.href);
        url.searchParams.set('item', id);
        location.replace(url);
    }

    function focus(entry) {
        entry.tabIndex = -1;
        entry.focus({ preventScroll: true });
        entry.scrollIntoView({ block: 'center' });
    }

    function step(by) {
        const all = [...document.querySelectorAll(ENTRIES)];
        const at = all.indexOf(document.activeElement?.closest(ENTRIES));
        const next = at < 0 ? (by > 0 ? all[0] : all.at(-1)) : all[at + by];
        if (next) focus(next);
    }

    /* Items inserted above must not move what is being read: keep the distance from the bottom. */
    let height = null;
    document.addEventListener('htmx:beforeSwap', (event) => {
        if (event.target.matches?.('[data-earlier]')) height = scroller().scrollHeight;
    });
    document.addEventListener('htmx:afterSettle', () => {
        if (height === null) return;
        const box = scroller();
        box.scrollTop += box.scrollHeight - height;
        height = null;
    });

    document.addEventListener('keydown', (event) => {
        if (event.altKey || event.ctrlKey || event.metaKey || !'jk'.includes(event.key)) return;
        if (event.target.closest('input, textarea, select, [contenteditable="true"]')) return;
        if (document.querySelector(ENTRIES)) step(event.key === 'j' ? 1 : -1);
    });

    document.addEventListener('DOMContentLoaded', () => {
        if (!document.querySelector('[data-chat]')) return;
        const query = new URLSearchParams(location.search);
        const item = query.get('item');
        const found = item && document.querySelector(`[data-item-id="${CSS.escape(item)}"]`);
        if (found) {
            focus(found.closest('.c-entry'));
        } else if (location.hash.length > 1 && item === null) {
            openAt(location.hash.slice(1));
        } else if (!query.has('before')) {
            document.querySelector('[data-chat]').lastElementChild?.scrollIntoView({ block: 'end' });
        }
    });

    document.addEventListener('click', (event) => {
        const button = event.target.closest('[data-copy]');
        if (button) {
            event.preventDefault();
            copy(button);
            return;
        }
        const link = event.target.closest('[data-more]');
        if (link && !event.metaKey && !event.ctrlKey) {
            event.preventDefault();
            loadMore(link);
        }
    });
})();
