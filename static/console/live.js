/* Running jobs: keeps the table of what runs up to date, over a socket or by asking every two seconds, and asks before
   it cancels anything. Everything that comes from elsewhere becomes text, never markup. */
(function () {
    'use strict';

    const ASK_MS = 2000, SILENT_MS = 8000, OVER_MS = 4000, TOLD_MS = 5000;
    const MEANINGS = {
        cancel: ['Cancel', 'The run ends where it stands. What it has finished stays in its output, and what it is at is lost.', 'Cancel the run', 'cancelling'],
        requeue: ['Requeue', 'The worker that has the run loses it. The next one goes on behind its last finished step, and repeats what was under way.', 'Requeue the run', 'requeueing'],
        fail: ['Mark as failed', 'The run ends as failed where it stands. What it has finished stays in its output.', 'End it as failed', 'ending'],
    };

    function start(root) {
        const find = (name) => root.querySelector(`[${name}]`);
        const table = root.querySelector('table');
        const blank = find('data-live-row').content.querySelector('tbody');
        const runs = new Map();
        for (const body of table.tBodies) runs.set(body.dataset.run, body);
        // How far the server's clock is from ours.
        let offset = Number(root.dataset.at) - Date.now();
        let heardAt = 0, toldAt = 0, told = '', socket = null, pause = 500, isAsking = false;

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
            if (heardAt && Date.now() - heardAt > SILENT_MS) link('lost', 'not connected');
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
            for (const name of ['stuck', 'words', 'team', 'model', 'mode', 'worker', 'attempt', 'step', 'tokens', 'event']) {
                put(cell(name), row[name]);
            }
            cell('worker').title = row.worker;
            put(cell('id'), row.id);
            if (cell('id').getAttribute('href') !== row.url) cell('id').href = row.url;
            since(cell('age'), row.created);
            since(cell('beat'), row.renewed);
            put(cell('wait'), row.waits ? 'waits' : `waited ${row.wait}`);
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

        function over(gone) {
            const body = runs.get(gone.id);
            if (!body || body.hasAttribute('data-over')) return;
            delete body.dataset.doing;
            body.dataset.over = '';
            body.dataset.tone = gone.tone;
            body.removeAttribute('data-stuck');
            put(body.querySelector('[data-cell="state"]'), gone.state);
            put(body.querySelector('[data-cell="stuck"]'), '');
            for (const act of body.querySelectorAll('[data-live-act]')) act.hidden = true;
            setTimeout(() => {
                if (!body.hasAttribute('data-over')) return;
                if (body.contains(document.activeElement)) table.closest('[tabindex]').focus();
                body.remove();
                runs.delete(gone.id);
                empty();
            }, OVER_MS);
        }

        function empty() {
            find('data-live-empty').hidden = table.tBodies.length > 0;
        }

        // -- messages ------------------------------------------------------------------------------------------------------

        function hear(message) {
            heardAt = Date.now();
            offset = message.at - heardAt;
            if (message.type === 'everything') {
                const known = new Set(message.set.map((row) => row.id));
                for (const id of runs.keys()) if (!known.has(id)) over({ id, state: 'ended', tone: 'ended' });
            }
            message.set.forEach(show);
            message.gone.forEach(over);
            count(message.counters);
            empty();
            if (message.is_away) link('lost', 'the database is away');
            else link(isAsking ? 'asking' : 'live', isAsking ? 'every 2 s' : 'live');
        }

        function count(counters) {
            for (const name of ['running', 'queued', 'stuck', 'workers', 'left']) {
                put(root.querySelector(`[data-counter="${name}"]`), counters[name]);
            }
            since(root.querySelector('[data-counter="oldest"]'), counters.oldest);
            root.querySelector('.c-live-stuck').classList.toggle('bad', counters.stuck !== '0');
            find('data-live-left').hidden = !counters.left;
            const now = `${counters.running} running, ${counters.queued} queued, ${counters.stuck} stuck`;
            if (now !== told && Date.now() - toldAt > TOLD_MS) {
                told = now;
                toldAt = Date.now();
                put(find('data-live-told'), now);
            }
        }

        function link(state, words) {
            const element = find('data-live-link');
            if (element.dataset.liveLink !== state) element.dataset.liveLink = state;
            put(element, words);
        }

        // -- the socket, and asking in its place -----------------------------------------------------------------------------

        function connect() {
            const address = `${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}${root.dataset.socket}`;
            try {
                socket = new WebSocket(address);
            } catch {
                ask();
                return;
            }
            socket.onmessage = (event) => {
                isAsking = false;
                pause = 500;
                hear(JSON.parse(event.data));
            };
            socket.onclose = (event) => {
                socket = null;
                if (event.code === 4401 || event.code === 4403) {
                    location.reload();
                    return;
                }
                isAsking = true;
                setTimeout(connect, pause);
                pause = Math.min(pause * 2, 15000);
            };
        }

        async function ask() {
            if (!isAsking || document.hidden) return;
            try {
                const answer = await fetch(root.dataset.rows, { headers: { Accept: 'application/json' } });
                if (answer.redirected || !answer.ok) throw new Error(String(answer.status));
                const message = await answer.json();
                if (isAsking) hear(message);
            } catch {
                link('lost', 'not connected');
            }
        }

        // -- what people do --------------------------------------------------------------------------------------------------

        const dialog = find('data-live-dialog');
        let chosen = null;

        function choose(act) {
            const body = act.closest('[data-run]'), [verb, meaning, button, doing] = MEANINGS[act.dataset.liveAct];
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
            let said = 'The platform does not answer. Try again.';
            try {
                const headers = { 'X-Requested-With': 'fetch' };
                const answer = await fetch(form.action, { method: 'POST', body: new FormData(form), headers });
                if (answer.headers.get('Content-Type') === 'application/json') said = (await answer.json()).said;
            } catch { /* said above */ }
            setTimeout(() => delete body.dataset.doing, 1000);
            put(find('data-live-said'), said);
            find('data-live-said').hidden = false;
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
        setInterval(ask, ASK_MS);
    }

    // Scripts stand in front of the page.
    document.addEventListener('DOMContentLoaded', () => {
        const root = document.querySelector('[data-live]');
        if (root) start(root);
    });
})();
