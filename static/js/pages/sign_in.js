// Signing in by a passkey, where the browser has them. django-allauth's own script asks.

if (window.PublicKeyCredential) {
  const form = document.getElementById("mfa_login");
  form.hidden = false;
  window.allauth.webauthn.forms.loginForm({
    ids: { login: "passkey_login", credential: "mfa_credential" },
  });
  document.addEventListener("allauth.error", (event) => {
    event.preventDefault(); // else it goes to the console
    const notice = document.createElement("p");
    notice.className = "notice notice-error";
    notice.setAttribute("role", "alert");
    notice.textContent =
      "No passkey was used. Try again, or sign in with your password.";
    form.previousElementSibling?.matches(".notice") || form.before(notice);
  });
}
