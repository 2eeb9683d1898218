// Sign-in with a passkey, if the browser supports it, by django-allauth's script.

if (window.PublicKeyCredential) {
  const form = document.getElementById("mfa_login");
  form.hidden = false;
  window.allauth.webauthn.forms.loginForm({
    ids: { login: "passkey_login", credential: "mfa_credential" },
  });
  document.addEventListener("allauth.error", (event) => {
    event.preventDefault(); // else it is logged to the console
    const notice = document.createElement("p");
    notice.className = "notice notice-error";
    notice.setAttribute("role", "alert");
    notice.textContent =
      "Passkey sign-in failed. Try again, or sign in with your password.";
    form.previousElementSibling?.matches(".notice") || form.before(notice);
  });
}
