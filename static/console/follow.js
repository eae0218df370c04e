/* The page of a response in progress: items and their text appear as they are produced. When the run has ended, the page
   reloads to show the complete transcript. All received values are inserted as text, never as HTML. */
(function () {
    'use strict';

    const MAX_CHARACTERS = 64 * 1024, RELOAD_MS = 400;
    const NAMES = { reasoning: 'reasoning', message: 'assistant' };

    function start(root) {
        const list = root.querySelector('[data-follow-items]'), status = root.querySelector('[data-follow-status]');
        const items = new Map();
        let pause = 500, hasEnded = false;

        function text(parent, value, name) {
            const element = document.createElement(name);
            element.textContent = value;
            parent.append(element);
            return element;
        }

        function item(id, type, name) {
            let found = items.get(id);
            // The page was rendered with this item: it is not repeated.
            if (found === undefined && document.querySelector(`[data-item-id="${CSS.escape(id)}"]`)) items.set(id, found = null);
            if (found === undefined) {
                const element = document.createElement('article');
                element.className = 'c-follow-item';
                element.dataset.followItem = id;
                element.dataset.type = type;
                const header = text(element, '', 'header');
                text(header, NAMES[type] || name || type, 'b');
                if (!NAMES[type]) text(header, type.replaceAll('_', ' '), 'span');
                text(header, '', 'span').dataset.status = '';
                list.append(element);
                items.set(id, found = { element, parts: new Map() });
            }
            return found;
        }

        function part(found, name) {
            let element = found.parts.get(name);
            if (!element) {
                element = text(found.element, '', 'div');
                element.className = name === 'text' || name === 'thought' ? 'c-follow-text' : 'c-follow-text code';
                if (element.classList.contains('code')) element.tabIndex = 0;
                found.parts.set(name, element);
            }
            return element;
        }

        function grow(element, value) {
            const room = MAX_CHARACTERS - element.textContent.length;
            if (room > 0) element.append(value.slice(0, room));
        }

        function receive(event) {
            const found = item(event.id, event.type || '', event.name);
            if (!found) return;
            if (event.text) grow(part(found, event.part), event.text);
            if (event.result) {
                const element = part(found, 'result');
                element.textContent = '';
                grow(element, event.result);
            }
            if (event.status) {
                found.element.querySelector('[data-status]').textContent = event.status;
                found.element.dataset.done = '';
            }
        }

        function connect() {
            const scheme = location.protocol === 'https:' ? 'wss' : 'ws';
            const socket = new WebSocket(`${scheme}://${location.host}${root.dataset.follow}`);
            socket.onmessage = (event) => {
                const message = JSON.parse(event.data);
                pause = 500;
                message.events.forEach(receive);
                if (message.has_ended) {
                    hasEnded = true;
                    status.textContent = 'The run has ended.';
                    setTimeout(() => location.reload(), RELOAD_MS);
                } else {
                    status.textContent = 'New output appears here.';
                }
            };
            socket.onclose = (event) => {
                // Nothing to follow, or content that this viewer may not see.
                if (hasEnded || [4401, 4403, 4404].includes(event.code)) return;
                status.textContent = 'Connection lost. Reconnecting …';
                // The server sends the log from the beginning again.
                for (const found of items.values()) if (found) found.element.remove();
                items.clear();
                setTimeout(connect, pause);
                pause = Math.min(pause * 2, 15000);
            };
        }

        connect();
    }

    document.addEventListener('DOMContentLoaded', () => {
        document.querySelectorAll('[data-follow]').forEach(start);
    });
})();
