// Sets the theme that was chosen before anything is drawn, so that nothing flashes. No module: those run too late.
try {
  const theme = localStorage.getItem("corosrv.theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is switched off: the system's theme it is.
}
