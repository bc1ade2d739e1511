// Search without a server: browsers start no worker from a file, so its script runs in a hidden frame instead.
// The theme looks for the name IFrameWorker and waits for what importScripts returns.
(() => {
  if (location.protocol !== "file:") return;
  class IFrameWorker extends EventTarget {
    constructor(address) {
      super();
      this.onmessage = null;
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      this.inside.importScripts = (...addresses) =>
        addresses.reduce((before, each) => before.then(() => this.load(each)), Promise.resolve());
      this.load(new URL(address, document.baseURI).href).then(() => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.deliver(data));
      });
    }
    load(address) {
      return new Promise((done, failed) => {
        const script = this.inside.document.createElement("script");
        script.src = address;
        script.onload = done;
        script.onerror = failed;
        this.inside.document.body.append(script);
      });
    }
    deliver(data) {
      this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.deliver(data);
    }
  }
  window.IFrameWorker = window.Worker = IFrameWorker;
})();
