// While a promotion is active, swap in the page's fresh <main> instead of reloading it:
// scroll position, open tables and focus stay. Without JavaScript the page reloads by itself.
(() => {
  const PAUSE = 3000;
  const refresh = async () => {
    const main = document.querySelector("main[data-live]");
    if (!main) return;
    if (!document.hidden && !window.getSelection()?.toString()) {
      try {
        const answer = await fetch(location.href, { headers: { accept: "text/html" }, cache: "no-store" });
        if (answer.ok) {
          const page = new DOMParser().parseFromString(await answer.text(), "text/html");
          const fresh = page.querySelector("main");
          const focus = document.activeElement?.id;
          for (const details of main.querySelectorAll("details[id]")) {
            const twin = fresh.querySelector("#" + CSS.escape(details.id));
            if (twin) twin.open = details.open;
          }
          main.replaceWith(fresh);
          document.title = page.title;
          if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
        }
      } catch { /* the server is away; the next round tries again */ }
    }
    setTimeout(refresh, PAUSE);
  };
  setTimeout(refresh, PAUSE);
})();
