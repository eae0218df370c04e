/* Replay of a response: plays its events at their original pace, with the output growing as the client received it.
   The log is fetched in pages on demand. Model output is inserted as text nodes only. */
(function () {
    'use strict';

    const PROSE = new Set(['output_text', 'refusal', 'reasoning_text', 'reasoning_summary_text', 'reasoning_summary']);

    /** The output that the client has received after a number of events: a block for each item, with its texts. */
    class Output {
        constructor(root) {
            this.root = root;
            this.clear();
        }

        clear() {
            this.count = 0;
            this.state = '';
            this.blocks = new Map();
            this.root.replaceChildren();
        }

        apply(event) {
            this.count += 1;
            const body = event.body;
            if (!body) {
                return;
            }
            if (body.type === 'response.output_item.added' || body.type === 'response.output_item.done') {
                const block = this.block(body.output_index);
                const item = body.item || {};
                block.title.data = [item.role, item.type, item.name, item.server_label].filter(Boolean).join(' · ');
                block.section.className = body.type.endsWith('added') ? 'is-open' : '';
            } else if (body.response && typeof body.response.status === 'string') {
                this.state = body.response.status;
            } else if (body.output_index !== undefined) {
                this.write(body);
            }
        }

        write(body) {
            const [, kind, ending] = /^response\.(.+)\.(delta|done)$/.exec(body.type) || [];
            if (!kind) {
                return;
            }
            const whole = [body.text, body.arguments, body.code, body.input, body.refusal, body.diff];
            const final = whole.find((value) => typeof value === 'string');
            if (ending === 'delta' && typeof body.delta === 'string') {
                this.text(body, kind).appendData(body.delta);
            } else if (ending === 'done' && final) {
                this.text(body, kind).data = final;
            }
        }

        block(index) {
            if (!this.blocks.has(index)) {
                const section = document.createElement('section');
                const heading = document.createElement('h2');
                const title = document.createTextNode(`item ${index}`);
                heading.append(title);
                section.append(heading);
                this.root.append(section);
                this.blocks.set(index, { section, title, texts: new Map() });
            }
            return this.blocks.get(index);
        }

        text(body, kind) {
            const block = this.block(body.output_index);
            const key = `${kind} ${body.content_index ?? body.summary_index ?? ''}`;
            if (!block.texts.has(key)) {
                const label = document.createElement('small');
                label.textContent = kind.replace(/[._]/g, ' ');
                const line = document.createElement('p');
                line.className = PROSE.has(kind) ? '' : 'is-code';
                const text = document.createTextNode('');
                line.append(text);
                block.section.append(label, line);
                block.texts.set(key, text);
            }
            return block.texts.get(key);
        }
    }

    /** The events fetched so far, from the first one on. */
    class Log {
        constructor(url) {
            this.url = url;
            this.events = [];
            this.next = 0;
            this.fetching = null;
        }

        get isWhole() {
            return this.next === null;
        }

        more() {
            this.fetching ||= this.fetch().finally(() => { this.fetching = null; });
            return this.fetching;
        }

        async fetch() {
            const answer = await fetch(`${this.url}?from=${this.next}`, { headers: { Accept: 'application/json' } });
            if (!answer.ok) {
                throw new Error(`The event log could not be loaded (HTTP ${answer.status}).`);
            }
            const page = await answer.json();
            for (const event of page.events) {
                event.body = event.data === undefined ? null : JSON.parse(event.data);
                event.data = undefined;
                this.events.push(event);
            }
            this.next = page.next;
        }
    }

    class Replay {
        constructor(root) {
            const one = (name) => root.querySelector(`[data-${name}]`);
            Object.assign(this, {
                root, slider: one('slider'), play: one('play'), speed: one('speed'), status: one('status'),
                about: one('about'), raw: one('raw'), whole: one('whole'), log: new Log(root.dataset.url), output: new Output(one('output')),
                target: 0, clock: 0, isPlaying: false, before: 0,
            });
            this.pane = one('output');
            this.slider.addEventListener('input', () => { this.pause(); this.go(Number(this.slider.value)); });
            this.play.addEventListener('click', () => (this.isPlaying ? this.pause() : this.start()));
            for (const button of root.querySelectorAll('[data-step]')) {
                button.addEventListener('click', () => { this.pause(); this.go(this.target + Number(button.dataset.step)); });
            }
            root.hidden = false;
        }

        /** Show the output after this many events; fetches missing ones. */
        async go(count) {
            this.target = Math.max(0, Math.min(count, Number(this.slider.max)));
            this.slider.value = String(this.target);
            const target = this.target;
            try {
                while (this.log.events.length < target && !this.log.isWhole && this.target === target) {
                    this.status.textContent = `Loading events: ${this.log.events.length} of ${this.slider.max} …`;
                    await this.log.more();
                }
            } catch (error) {
                this.pause();
                this.status.textContent = error.message;
                return;
            }
            if (this.target === target) {
                this.show(Math.min(target, this.log.events.length));
            }
        }

        show(count) {
            const isAtEnd = this.pane.scrollHeight - this.pane.scrollTop - this.pane.clientHeight < 40;
            if (count < this.output.count) {
                this.output.clear();
            }
            while (this.output.count < count) {
                this.output.apply(this.log.events[this.output.count]);
            }
            if (isAtEnd) {
                this.pane.scrollTop = this.pane.scrollHeight;
            }
            this.update(count);
        }

        update(count) {
            const event = this.log.events[count - 1];
            this.target = count;
            this.slider.value = String(count);
            this.clock = event ? event.t : 0;
            const words = event ? `Event ${event.n}, ${event.t} ms` : 'Before the first event';
            this.slider.setAttribute('aria-valuetext', event ? `${words}, ${event.type}` : words);
            // Screen readers announce where the replay stops, not every event on the way.
            if (!this.isPlaying) {
                this.status.textContent = `${words}${this.output.state ? `, status ${this.output.state.charAt(0).toUpperCase()}${this.output.state.slice(1).replaceAll('_', ' ')}` : ''}.`;
            }
            this.about.textContent = event ? `${event.n}: ${event.type}, ${event.size} bytes` : 'No event selected';
            this.raw.textContent = !event ? '' : event.body
                ? JSON.stringify(event.body, null, 2)
                : 'Larger than 64 KB: download it to view.';
            this.whole.hidden = !event || Boolean(event.body);
            this.whole.href = event ? `${this.log.url}?from=${event.n}&whole=1` : '#';
        }

        async start() {
            if (this.target >= Number(this.slider.max)) {
                await this.go(0);
            }
            this.isPlaying = true;
            this.label('Pause', 'pause');
            this.status.textContent = 'Playing.';
            this.before = performance.now();
            if (this.target === 0) {
                this.clock = 0;
            }
            requestAnimationFrame((at) => this.frame(at));
        }

        pause() {
            if (this.isPlaying) {
                this.isPlaying = false;
                this.label('Play', 'play_arrow');
                this.update(this.output.count);
            }
        }

        label(word, icon) {
            this.play.setAttribute('aria-label', word);
            this.play.firstElementChild.textContent = icon;
        }

        async frame(at) {
            if (!this.isPlaying || !this.root.isConnected) {
                return;
            }
            const clock = this.clock + (at - this.before) * Number(this.speed.value);
            this.before = at;
            let count = this.output.count;
            while (count < this.log.events.length && this.log.events[count].t <= clock) {
                count += 1;
            }
            if (count > this.output.count) {
                this.show(count);
            }
            this.clock = clock;
            if (count === this.log.events.length) {
                if (this.log.isWhole) {
                    this.pause();
                    return;
                }
                await this.go(count + 1).then(() => { this.clock = Math.max(clock, this.clock); });
                this.before = performance.now();
            }
            requestAnimationFrame((next) => this.frame(next));
        }
    }

    const replays = new WeakMap();

    const begin = (within) => {
        for (const root of within.querySelectorAll('[data-replay]')) {
            if (!replays.has(root)) {
                replays.set(root, new Replay(root));
            }
        }
    };

    document.addEventListener('DOMContentLoaded', () => begin(document));
    document.addEventListener('htmx:afterSettle', () => begin(document));

    // A number in the event table moves the replay to that event. Without a replay it links to the event's JSON.
    document.addEventListener('click', (event) => {
        const link = event.target instanceof Element ? event.target.closest('a[data-event]') : null;
        const replay = link && replays.get(document.querySelector('[data-replay]'));
        if (replay && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
            event.preventDefault();
            replay.pause();
            replay.go(Number(link.dataset.event) + 1);
            replay.root.scrollIntoView({ block: 'nearest' });
            replay.slider.focus({ preventScroll: true });
        }
    });
})();
