"use strict";
const root = document.documentElement;

// The page follows the system until its button is pressed; what is drawn in the page's colours listens to "themechange".
const darkSystem = window.matchMedia("(prefers-color-scheme: dark)");
const theme = document.getElementById("theme");
const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : darkSystem.matches;
function showTheme() {
  theme.setAttribute("aria-pressed", String(isDark()));
  document.dispatchEvent(new Event("themechange"));
}
theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; showTheme(); });
darkSystem.addEventListener("change", showTheme);
showTheme();
