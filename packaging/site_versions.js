// A choice of version in the header, where several lie beside each other (versions.js lists them, newest first).
(() => {
  const header = document.querySelector(".md-header__inner");
  if (typeof siteVersions === "undefined" || siteVersions.length < 2 || !header) return;
  const top = document.currentScript.dataset.top;
  const here = new URL(top || ".", location.href).pathname.split("/").filter(Boolean).pop();
  const choice = document.createElement("select");
  choice.className = "site-version";
  choice.title = "version";
  for (const version of siteVersions) choice.add(new Option(version, version, false, version === here));
  // Not every version has every page.
  choice.onchange = () => { location.href = `${top}../${choice.value}/index.html`; };
  header.append(choice);
})();
