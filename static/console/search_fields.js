'use strict';
/* Fields that search the rows of a relation: a form loads Select2 with the first of them, which may be in a row that the
   user adds. */
(() => {
    const load = () => {
        const script = document.querySelector('script[data-search-fields]');
        const fields = document.querySelectorAll('.admin-autocomplete, .unfold-admin-autocomplete');
        if (!script || [...fields].every((field) => field.name.includes('__prefix__'))) return;
        // Django's forms remove the global name, which Select2 needs.
        window.jQuery = window.django.jQuery;
        document.head.append(Object.assign(document.createElement('script'), { src: script.dataset.searchFields }));
        script.removeAttribute('data-search-fields');
    };

    document.addEventListener('DOMContentLoaded', load);
    document.addEventListener('formset:added', load);
})();
