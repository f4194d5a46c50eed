// Work that a newer request replaces: the earlier requests are cancelled, and a problem is shown and tried again.

import { Problem } from "./api.js";
import { showProblem } from "./notices.js";

// A longer wait is shown, but not waited for.
const MAX_RETRY_SECONDS = 30;

export class Task {
  #controller = new AbortController();
  #timer;

  /** `region` is marked as busy during the work; problems appear in `slot`. */
  constructor(region, slot) {
    Object.assign(this, { region, slot });
  }

  /**
   * Stop the previous work; start `work(signal)` after `delay` milliseconds. If the work returns a function, this function
   * may write into the slot.
   */
  start(work, delay = 0) {
    this.stop();
    const controller = new AbortController();
    this.#controller = controller;
    this.#timer = setTimeout(() => this.#run(work, controller), delay);
  }

  stop() {
    clearTimeout(this.#timer);
    this.#controller.abort();
    this.region.removeAttribute("aria-busy");
  }

  async #run(work, controller) {
    const { signal } = controller;
    this.region.setAttribute("aria-busy", "true");
    try {
      const finish = await work(signal);
      if (signal.aborted) return;
      this.slot.replaceChildren();
      this.region.removeAttribute("data-failed");
      finish?.();
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Problem)) throw error;
      this.#showAndRetry(error, work, signal);
    } finally {
      if (!signal.aborted) this.region.removeAttribute("aria-busy");
    }
  }

  #showAndRetry(problem, work, signal) {
    const again = () => this.start(work);
    this.region.setAttribute("data-failed", "");
    const automatic = problem.retrySeconds <= MAX_RETRY_SECONDS;
    if (automatic) this.#timer = setTimeout(again, 1000 * Math.max(1, problem.retrySeconds));
    if (problem.status === 401) document.addEventListener("apikey", again, { signal, once: true });
    if (problem.status === 0) addEventListener("online", again, { signal, once: true });
    showProblem(this.slot, problem, automatic, again);
  }
}
