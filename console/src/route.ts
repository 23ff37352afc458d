// The address behind the hash: #/models/NAME/VERSION/TAB.

import { signal } from "@preact/signals";

export interface Route {
  page: string;
  parts: string[];
}

function readHash(): Route {
  const [page = "models", ...parts] = location.hash
    .replace(/^#\/?/, "")
    .split("/")
    .map((part) => {
      try {
        return decodeURIComponent(part);
      } catch {
        return part;
      }
    });
  return { page: page || "models", parts: parts.filter(Boolean) };
}

export const route = signal<Route>(readHash());
addEventListener("hashchange", () => {
  route.value = readHash();
});

export const link = (...parts: string[]): string => `#/${parts.map(encodeURIComponent).join("/")}`;
