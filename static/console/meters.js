'use strict';
/* Meters of limits: reads their values every two seconds while the page is visible. Values are inserted as text. */
(() => {
    const POLL_MS = 2000;

    function show(root, meters) {
        const byKey = new Map(meters.map((meter) => [meter.key, meter]));
        for (const element of root.querySelectorAll('[data-meter]')) {
            const meter = byKey.get(element.dataset.meter);
            if (!meter) continue;
            element.querySelector('[data-meter-text]').textContent = meter.text;
            element.querySelector('rect').setAttribute('width', meter.percent);
            element.querySelector('.c-meter').className = `c-meter c-tone-${meter.tone}`;
        }
    }

    async function poll(root) {
        if (!document.hidden) {
            try {
                const answer = await fetch(root.dataset.meters, { headers: { Accept: 'application/json' } });
                if (answer.ok) show(root, (await answer.json()).meters);
            } catch {
                // The server is away for a moment; the next attempt follows.
            }
        }
        setTimeout(poll, POLL_MS, root);
    }

    document.addEventListener('DOMContentLoaded', () => {
        for (const root of document.querySelectorAll('[data-meters]')) poll(root);
    });
})();
