// The operator's two actions, each with a reason.
import { $, say } from "./dom.js";

const WORDS = {
  quarantine: ["Quarantine", "Its weight is 0 from the next round on, until it is released."],
  release: ["Release", "It takes part again from the next round on."],
};

export class Actions {
  constructor() {
    this.dialog = $("action");
    $("action-cancel").addEventListener("click", () => this.dialog.close());
    $("action-form").addEventListener("submit", (event) => { event.preventDefault(); this.go(); });
  }

  ask(run, action, client) {
    Object.assign(this, { run, action, client });
    say("action-title", `${WORDS[action][0]} ${client}`);
    say("action-text", WORDS[action][1]);
    say("action-go", WORDS[action][0]);
    say("action-error", "");
    $("action-reason").value = "";
    this.dialog.showModal();
    $("action-reason").focus();
  }

  async go() {
    const reason = $("action-reason").value.trim();
    if (!reason) { say("action-error", "Give a reason."); return; }
    $("action-go").disabled = true;
    try {
      const answer = await fetch(`/api/runs/${this.run}/${this.action}`, {
        method: "POST", credentials: "same-origin",
        headers: { "Content-Type": "application/json", "X-Wardround": "1" },
        body: JSON.stringify({ client: this.client, reason }),
      });
      const result = await answer.json();
      if (answer.ok) this.dialog.close();
      else say("action-error", result.error);
    } catch {
      say("action-error", "The server does not answer.");
    } finally {
      $("action-go").disabled = false;
    }
  }
}
