// Goes on by itself: a form may not lead to another site, a link may.

const link = document.querySelector("[data-follow]");
if (link) window.location.replace(link.href);
