/* Running jobs: keeps the table up to date over a WebSocket, or by polling every two seconds, and asks for confirmation
   before an action. All received values are inserted as text, never as HTML. */
(function () {
    'use strict';

    const POLL_MS = 2000, SILENT_MS = 8000, ENDED_MS = 4000, ANNOUNCE_MS = 5000;
    const ACTIONS = {
        cancel: ['Cancel', 'Stops the run. Finished output is kept; work in progress is lost.', 'Cancel run', 'cancelling'],
        requeue: ['Requeue', 'Takes the run away from its worker. Another worker resumes it after the last completed step and repeats the step in progress.', 'Requeue run', 'requeueing'],
        fail: ['Mark as failed', 'Ends the run with status failed. Finished output is kept.', 'Mark as failed', 'marking as failed'],
    };

    function start(root) {
        const find = (name) => root.querySelector(`[${name}]`);
        const table = root.querySelector('table');
        const blank = find('data-live-row').content.querySelector('tbody');
        const runs = new Map();
        for (const body of table.tBodies) runs.set(body.dataset.run, body);
        // Difference between the server's clock and ours: ages are relative to the server's.
        let offset = Number(root.dataset.at) - Date.now();
        let receivedAt = 0, announcedAt = 0, announced = '', socket = null, pause = 500, isPolling = false;

        table.classList.add('is-live');

        // -- cells ---------------------------------------------------------------------------------------------------------

        function put(element, text) {
            const next = text === null || text === undefined ? '' : String(text);
            if (element.textContent !== next) element.textContent = next;
        }

        function age(milliseconds) {
            const seconds = Math.max(0, Math.floor(milliseconds / 1000));
            if (seconds < 60) return `${seconds} s`;
            const minutes = Math.floor(seconds / 60);
            if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
            return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
        }

        function since(element, moment) {
            if (moment === null) {
                element.removeAttribute('data-since');
                put(element, '–');
            } else {
                element.dataset.since = moment;
                put(element, age(Date.now() + offset - moment));
            }
        }

        function tick() {
            for (const element of root.querySelectorAll('[data-since]')) {
                const moment = Number(element.dataset.since);
                if (moment) put(element, age(Date.now() + offset - moment));
            }
            if (receivedAt && Date.now() - receivedAt > SILENT_MS) link('lost', 'not connected');
        }

        // -- rows ----------------------------------------------------------------------------------------------------------

        function made(row) {
            const body = blank.cloneNode(true);
            body.dataset.run = row.id;
            body.querySelector('[data-live-open]').setAttribute('aria-label', `Turns and tool calls of ${row.id}`);
            for (const act of body.querySelectorAll('[data-live-act]')) {
                act.href = `${location.pathname}${row.id}/${act.dataset.liveAct}/`;
            }
            runs.set(row.id, body);
            return body;
        }

        function show(row) {
            const body = runs.get(row.id) || made(row);
            const cell = (name) => body.querySelector(`[data-cell="${name}"]`);
            const isMoved = body.dataset.order !== row.order || !body.isConnected;
            body.dataset.order = row.order;
            body.dataset.tone = row.tone;
            body.toggleAttribute('data-stuck', Boolean(row.stuck));
            body.removeAttribute('data-over');
            put(cell('state'), body.dataset.doing || row.state);
            for (const name of ['stuck', 'preview', 'team', 'model', 'mode', 'worker', 'attempt', 'step', 'tokens', 'event']) {
                put(cell(name), row[name]);
            }
            cell('worker').title = row.worker;
            put(cell('id'), row.id);
            if (cell('id').getAttribute('href') !== row.url) cell('id').href = row.url;
            cell('approval').hidden = !row.approval;
            if (cell('approval').getAttribute('href') !== row.approval) cell('approval').href = row.approval;
            since(cell('age'), row.created);
            since(cell('beat'), row.renewed);
            put(cell('wait'), row.waits ? 'waiting' : `waited ${row.wait}`);
            for (const act of body.querySelectorAll('[data-live-act]')) {
                act.hidden = !row.may[act.dataset.liveAct] || Boolean(body.dataset.doing);
            }
            chips(cell('steps'), row.steps);
            if (isMoved) place(body);
        }

        function chips(list, steps) {
            while (list.children.length > steps.length) list.lastElementChild.remove();
            steps.forEach((step, index) => {
                let chip = list.children[index];
                if (!chip) {
                    chip = document.createElement('li');
                    chip.className = 'c-live-chip';
                    chip.append(document.createElement('b'), ' ', document.createElement('span'), ' ', document.createElement('small'));
                    list.append(chip);
                }
                chip.dataset.kind = step.kind;
                chip.dataset.tone = step.tone;
                put(chip.children[0], step.name);
                put(chip.children[1], step.state);
                put(chip.children[2], step.took);
            });
        }

        function place(body) {
            const held = body.contains(document.activeElement) ? document.activeElement : null;
            const after = [...table.tBodies].find((other) => other !== body && other.dataset.order > body.dataset.order);
            table.insertBefore(body, after || null);
            if (held) held.focus();
        }

        function markEnded(gone) {
            const body = runs.get(gone.id);
            if (!body || body.hasAttribute('data-over')) return;
            // The row stays for a moment, so that its final status can be read.
            delete body.dataset.doing;
            body.dataset.over = '';
            body.dataset.tone = gone.tone;
            body.removeAttribute('data-stuck');
            put(body.querySelector('[data-cell="state"]'), gone.state);
            put(body.querySelector('[data-cell="stuck"]'), '');
            for (const act of body.querySelectorAll('[data-live-act], [data-cell="approval"]')) act.hidden = true;
            setTimeout(() => {
                if (!body.hasAttribute('data-over')) return;
                if (body.contains(document.activeElement)) table.closest('[tabindex]').focus();
                body.remove();
                runs.delete(gone.id);
                empty();
            }, ENDED_MS);
        }

        function empty() {
            find('data-live-empty').hidden = table.tBodies.length > 0;
        }

        // -- messages ------------------------------------------------------------------------------------------------------

        function receive(message) {
            receivedAt = Date.now();
            offset = message.at - receivedAt;
            if (message.type === 'everything') {
                const known = new Set(message.set.map((row) => row.id));
                for (const id of runs.keys()) if (!known.has(id)) markEnded({ id, state: 'Ended', tone: 'ended' });
            }
            message.set.forEach(show);
            message.gone.forEach(markEnded);
            count(message.counters);
            empty();
            if (message.is_unavailable) link('lost', 'database unavailable');
            else link(isPolling ? 'asking' : 'live', isPolling ? 'every 2 s' : 'live');
        }

        function count(counters) {
            for (const name of ['running', 'queued', 'awaiting', 'stuck', 'workers', 'left']) {
                put(root.querySelector(`[data-counter="${name}"]`), counters[name]);
            }
            since(root.querySelector('[data-counter="oldest"]'), counters.oldest);
            root.querySelector('.c-live-stuck').classList.toggle('bad', counters.stuck !== '0');
            find('data-live-left').hidden = !counters.left;
            const now = `${counters.running} running, ${counters.queued} queued, ${counters.stuck} stuck`;
            // Screen readers announce this: not more often than every few seconds.
            if (now !== announced && Date.now() - announcedAt > ANNOUNCE_MS) {
                announced = now;
                announcedAt = Date.now();
                put(find('data-live-updated'), now);
            }
        }

        function link(state, words) {
            const element = find('data-live-link');
            if (element.dataset.liveLink !== state) element.dataset.liveLink = state;
            put(element, words);
        }

        // -- WebSocket and polling -------------------------------------------------------------------------------------------

        function connect() {
            const address = `${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}${root.dataset.socket}`;
            try {
                socket = new WebSocket(address);
            } catch {
                poll();
                return;
            }
            socket.onmessage = (event) => {
                isPolling = false;
                pause = 500;
                receive(JSON.parse(event.data));
            };
            socket.onclose = (event) => {
                socket = null;
                // Signed out, or no longer allowed: the reloaded page says which.
                if (event.code === 4401 || event.code === 4403) {
                    location.reload();
                    return;
                }
                isPolling = true;
                setTimeout(connect, pause);
                pause = Math.min(pause * 2, 15000);
            };
        }

        async function poll() {
            if (!isPolling || document.hidden) return;
            try {
                const answer = await fetch(root.dataset.rows, { headers: { Accept: 'application/json' } });
                if (answer.redirected || !answer.ok) throw new Error(String(answer.status));
                const message = await answer.json();
                if (isPolling) receive(message);
            } catch {
                link('lost', 'not connected');
            }
        }

        // -- actions ---------------------------------------------------------------------------------------------------------

        const dialog = find('data-live-dialog');
        let chosen = null;

        function choose(act) {
            const body = act.closest('[data-run]'), [verb, meaning, button, doing] = ACTIONS[act.dataset.liveAct];
            chosen = { body, act, doing };
            dialog.querySelector('form').action = act.href;
            put(find('data-live-question'), `${verb} ${body.dataset.run}?`);
            put(find('data-live-meaning'), meaning);
            put(find('data-live-do'), button);
            dialog.showModal();
        }

        async function act(form) {
            const { body, doing } = chosen;
            dialog.close();
            body.dataset.doing = doing;
            put(body.querySelector('[data-cell="state"]'), doing);
            for (const link of body.querySelectorAll('[data-live-act]')) link.hidden = true;
            let text = 'No response from the server. Try again.';
            try {
                const headers = { 'X-Requested-With': 'fetch' };
                const answer = await fetch(form.action, { method: 'POST', body: new FormData(form), headers });
                if (answer.headers.get('Content-Type') === 'application/json') text = (await answer.json()).message;
            } catch { /* the default text says it */ }
            setTimeout(() => delete body.dataset.doing, 1000);
            put(find('data-live-message'), text);
            find('data-live-message').hidden = false;
        }

        root.addEventListener('click', (event) => {
            const opener = event.target.closest('[data-live-open]'), button = event.target.closest('[data-live-act]');
            if (opener) {
                const isOpen = opener.closest('[data-run]').toggleAttribute('data-opened');
                opener.setAttribute('aria-expanded', String(isOpen));
            } else if (button) {
                event.preventDefault();
                choose(button);
            } else if (event.target.closest('[data-live-close]')) {
                dialog.close();
            }
        });
        dialog.addEventListener('submit', (event) => {
            event.preventDefault();
            act(event.target);
        });

        connect();
        tick();
        setInterval(tick, 1000);
        setInterval(poll, POLL_MS);
    }

    // Scripts load in the head, before the page is parsed.
    document.addEventListener('DOMContentLoaded', () => {
        const root = document.querySelector('[data-live]');
        if (root) start(root);
    });
})();
