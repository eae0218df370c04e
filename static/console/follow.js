/* The page of a response that is not over yet: its items appear as they are made, and their text as it grows. Once the
   run has ended, the page is loaded again, with everything that is known then. All of it is text, never markup. */
(function () {
    'use strict';

    const MOST = 64 * 1024, LATER_MS = 400;
    const NAMES = { reasoning: 'reasoning', message: 'assistant' };

    function start(root) {
        const list = root.querySelector('[data-follow-items]'), told = root.querySelector('[data-follow-told]');
        const items = new Map();
        let pause = 500, hasEnded = false;

        function text(parent, words, name) {
            const element = document.createElement(name);
            element.textContent = words;
            parent.append(element);
            return element;
        }

        function item(id, type, name) {
            let found = items.get(id);
            // What the page has already is not said twice.
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

        function grow(element, words) {
            const room = MOST - element.textContent.length;
            if (room > 0) element.append(words.slice(0, room));
        }

        function hear(event) {
            const found = item(event.id, event.type || '', event.name);
            if (!found) return;
            if (event.words) grow(part(found, event.part), event.words);
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
            socket.onmessage = (message) => {
                const said = JSON.parse(message.data);
                pause = 500;
                said.events.forEach(hear);
                if (said.has_ended) {
                    hasEnded = true;
                    told.textContent = 'The run has ended.';
                    setTimeout(() => location.reload(), LATER_MS);
                } else {
                    told.textContent = 'The run is going on; what it says appears here.';
                }
            };
            socket.onclose = (event) => {
                // Nothing to follow, or nothing that this reader may see.
                if (hasEnded || [4401, 4403, 4404].includes(event.code)) return;
                told.textContent = 'The connection is lost; trying again.';
                // Everything is told from the beginning.
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
