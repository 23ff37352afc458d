// Server-sent events, read by fetch, because EventSource sends no headers of our own.

export interface ServerEvent {
  name: string;
  data: string;
}

/** Yields the events of an answer's body. `alive` is called for each piece that comes, also for comments. */
export async function* events(body: ReadableStream<Uint8Array>, alive: () => void = () => {}): AsyncGenerator<ServerEvent> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      alive();
      rest += decoder.decode(value, { stream: true });
      for (;;) {
        const end = /\r?\n\r?\n/.exec(rest);
        if (!end) break;
        const block = rest.slice(0, end.index);
        rest = rest.slice(end.index + end[0].length);
        let name = "message";
        const data: string[] = [];
        for (const line of block.split(/\r?\n/)) {
          if (line.startsWith("event:")) name = line.slice(6).trim();
          else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
        }
        if (data.length) yield { name, data: data.join("\n") };
      }
    }
  } finally {
    void reader.cancel().catch(() => {});
  }
}
