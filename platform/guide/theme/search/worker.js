// The search of the documentation, in place of the plugin's own worker: that one splits words at spaces only, so that it
// finds neither paths nor names in code, and reads a colon or a star as an operator.
importScripts("lunr.js");
lunr.tokenizer.separator = /[^\w]+/;

var index;
var sections = {};
// Sections whose headings begin with, or contain, all words of a query come before those that only mention them.
var SAME_TITLE = 8, IN_TITLE = 3, PHRASE = 2, PHRASE_AT_BEGINNING = 2;
var BEGINNING = 160;
var CODE_IN_REFERENCE = 3;
// Lists of changes, measurements and tables of everything mention every word, but seldom explain it.
var WEIGHTS = [
  [/^project\//, 0.3],
  [/^reference\/(api-coverage|unavailable|faults)\.html/, 0.4],
  [/^reference\/api\/index\.html/, 0.5],
];

function plain(text) {
  return " " + text.toLowerCase().split(lunr.tokenizer.separator).filter(Boolean).join(" ") + " ";
}

// Paths and identifiers of the API are looked up in the reference more often than in guides. Those in capitals are
// variables, which all of its samples use.
function isCode(text) {
  return /\w[_./]\w/.test(text) && /[a-z]/.test(text);
}

function wordsOf(text) {
  return lunr.tokenizer(text).map(String).filter(function (word) { return lunr.stopWordFilter(word); });
}

function stem(word) {
  return lunr.stemmer(new lunr.Token(word)).toString();
}

function stems(text) {
  return " " + wordsOf(text).map(stem).join(" ") + " ";
}

function weightOf(location) {
  var weight = WEIGHTS.find(function (pair) { return pair[0].test(location); });
  // A whole page has the words of all its sections.
  return (weight ? weight[1] : 1) * (location.includes("#") ? 1 : 0.8);
}

function load(found) {
  var titles = {};
  found.docs.forEach(function (section) {
    var page = section.location.split("#")[0];
    if (page === section.location) titles[page] = section.title;
    // The section of a page's title repeats the beginning of the page.
    else if (section.title === titles[page]) return;
    section.plain = plain(section.text);
    section.stems = stems(section.title);
    sections[section.location] = section;
  });
  index = lunr(function () {
    this.ref("location");
    // A path such as GET /v1/me consists of them.
    this.pipeline.remove(lunr.stopWordFilter);
    this.field("title", { boost: 6 });
    this.field("text");
    Object.values(sections).forEach(this.add, this);
  });
  postMessage({ config: found.config });
  postMessage({ allowSearch: true });
}

function score(section, result, query) {
  var matched = Object.keys(result.matchData.metadata);
  var share = query.words.filter(function (word) {
    return matched.includes(stem(word)) || matched.some(function (term) { return term.startsWith(word); });
  }).length / query.words.length;
  var value = result.score * Math.pow(share, 3) * weightOf(section.location);
  if (query.isCode && /^reference\/(api\/|errors|commands|configuration)/.test(section.location)) value *= CODE_IN_REFERENCE;
  if (section.stems === query.stems) value *= SAME_TITLE;
  else if (section.stems.includes(query.stems)) value *= IN_TITLE;
  var place = section.plain.indexOf(query.plain);
  if (query.words.length > 1 && place >= 0) value *= place < BEGINNING ? PHRASE * PHRASE_AT_BEGINNING : PHRASE;
  return value;
}

function excerpt(section, query) {
  var text = section.text, lower = text.toLowerCase();
  var places = [query.text.toLowerCase()].concat(query.words).map(function (part) { return lower.indexOf(part); });
  var place = places.find(function (position) { return position >= 0; }) || 0;
  var start = place < 120 ? 0 : text.indexOf(" ", place - 80) + 1;
  return (start ? "… " : "") + text.slice(start, start + 200);
}

function search(text) {
  var words = Array.from(new Set(wordsOf(text)));
  if (!words.length || text.includes("/")) words = lunr.tokenizer(text).map(String);
  var query = { text: text.trim(), words: words, plain: plain(text), stems: stems(text), isCode: isCode(text) };
  var results = index.query(function (clauses) {
    words.forEach(function (word) {
      clauses.term(word, {});
      // The last word may be incomplete while it is typed.
      clauses.term(word, { usePipeline: false, wildcard: lunr.Query.wildcard.TRAILING, boost: 0.2 });
    });
  });
  return results
    .map(function (result) {
      var section = sections[result.ref];
      return { section: section, score: score(section, result, query) };
    })
    .toSorted(function (a, b) { return b.score - a.score; })
    .map(function (found) {
      var section = found.section;
      return { location: section.location, title: section.title, summary: excerpt(section, query) };
    });
}

onmessage = function (event) {
  if (event.data.init) {
    fetch("search_index.json").then(function (answer) { return answer.json(); }).then(load);
  } else if (event.data.query && index) {
    postMessage({ results: search(event.data.query) });
  }
};
