// The theme searches in a Worker. Browsers refuse to start one for a page that was opened from a folder. There a hidden
// frame runs the script of the worker. On a page from a server, nothing changes.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.scope = frame.contentWindow;
      this.scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = this.scope.document.createElement("script");
      script.src = address;
      this.loaded = new Promise((done) => (script.onload = done));
      this.scope.document.body.appendChild(script);
    }

    postMessage(data) {
      this.loaded.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
