/* Transcripts: buttons that copy, and the rest of long texts, which is loaded in pieces and only ever set as text. */
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
            link.textContent = 'It could not be loaded; try again';
        } finally {
            link.removeAttribute('aria-busy');
        }
    }

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
