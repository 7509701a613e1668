// Light or dark colours: those that were chosen on this page, else those that the browser asks for.

const CHOSEN = "lockstep-theme";
const isDarkWanted = matchMedia("(prefers-color-scheme: dark)");

function theme() {
  return localStorage.getItem(CHOSEN) ?? (isDarkWanted.matches ? "dark" : "light");
}

/** Apply the colours, and let a button choose the others. `themechange` is an event of the window. */
export function toggleThemeBy(button) {
  function apply() {
    const other = theme() === "dark" ? "Light" : "Dark";
    document.documentElement.dataset.theme = theme();
    button.textContent = other;
    button.setAttribute("aria-label", `${other} colours`);
    dispatchEvent(new Event("themechange"));
  }

  button.addEventListener("click", () => {
    localStorage.setItem(CHOSEN, theme() === "dark" ? "light" : "dark");
    apply();
  });
  isDarkWanted.addEventListener("change", apply);
  apply();
}
