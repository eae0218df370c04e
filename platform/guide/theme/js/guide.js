// Variables that the theme's scripts read; the theme itself sets them in an inline script.
var base_url = new URL("..", document.currentScript.src).pathname.replace(/\/$/, "");
var shortcuts = { help: 191, next: 78, previous: 80, search: 83 };
// The theme would follow the sections of its own sidebar, which this layout does not have; anchors such as
// "#6-receive-a-webhook" are not valid selectors for it.
bootstrap.ScrollSpy = function () {};

document.addEventListener("DOMContentLoaded", function () {
  document.querySelectorAll(".guide-page pre").forEach(function (block) {
    var button = document.createElement("button");
    button.type = "button";
    button.className = "guide-copy";
    button.textContent = "Copy";
    button.addEventListener("click", function () {
      navigator.clipboard.writeText(block.querySelector("code").innerText).then(function () {
        button.textContent = "Copied";
        setTimeout(function () { button.textContent = "Copy"; }, 1500);
      });
    });
    block.appendChild(button);
  });
  var active = document.querySelector(".guide-nav a.active");
  if (active) active.scrollIntoView({ block: "nearest" });
});
