// The ops of the trusted libraries.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { plural } from "../format";
import { Code, Empty, Problem, Search, Title, useResource } from "../parts";
import { link, route } from "../route";
import type { Op } from "../types";

export function Ops(): JSX.Element {
  const found = useResource<{ ops: Op[] }>("console/ops");
  const [domain, name] = route.value.parts;
  const ops = found.data?.ops ?? [];
  if (domain && name) {
    const op = ops.find((each) => each.domain === domain && each.name === name);
    if (op) return <OneOp op={op} />;
    return (
      <>
        <Title>{name}</Title>
        <Problem text={found.error} again={found.reload} />
        {!found.loading && !found.error && (
          <Empty title={`No trusted library has the op ${domain}.${name}.`}>
            <a href={link("ops")}>All ops</a>
          </Empty>
        )}
      </>
    );
  }
  return (
    <>
      <Title beside={<span class="muted num">{plural(ops.length, "op")}</span>}>Ops</Title>
      <Problem text={found.error} again={found.reload} />
      {found.loading ? <p class="muted" role="status">Reading the ops.</p> : !found.error && <List ops={ops} />}
    </>
  );
}

const search = { text: "" };

function List({ ops }: { ops: readonly Op[] }): JSX.Element {
  const [text, setText] = useState(search.text);
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = ops.filter((op) => {
    const all = `${op.domain} ${op.name} ${op.document} ${op.dtypes.join(" ")} ${op.devices.join(" ")} ${op.engines.join(" ")}`.toLowerCase();
    return words.every((word) => all.includes(word));
  });
  if (!ops.length) {
    return (
      <Empty title="The gateway trusts no library of ops.">
        <code>opgate build</code> makes one, and <code>opgate trust</code> lists it for the gateway.
      </Empty>
    );
  }
  return (
    <>
      <Search
        id="op-search"
        label="Search ops"
        value={text}
        change={(value) => {
          search.text = value;
          setText(value);
        }}
      />
      <p class="hint" aria-live="polite">{text && `${plural(shown.length, "op")} of ${ops.length}`}</p>
      {shown.length === 0 ? (
        <Empty title="No op fits the search.">Search by name, document, dtype (f16), device (cuda) or engine (torch).</Empty>
      ) : (
        <div class="scroll">
          <table class="cards">
            <thead>
              <tr>
                <th scope="col">Op</th>
                <th scope="col">What it does</th>
                <th scope="col">Dtypes</th>
                <th scope="col">Devices</th>
                <th scope="col">Engines</th>
                <th scope="col" class="num">Used by</th>
              </tr>
            </thead>
            <tbody>
              {shown.map((op) => (
                <tr key={`${op.domain}.${op.name}`}>
                  <th scope="row">
                    <a href={link("ops", op.domain, op.name)}>{op.name}</a>{" "}
                    {op.domain !== "opgate" && <span class="muted">{op.domain}</span>}
                  </th>
                  <td data-label="What it does">{op.document || "-"}</td>
                  <td data-label="Dtypes" class="mono">{op.dtypes.join(" ")}</td>
                  <td data-label="Devices">{op.devices.join(", ")}</td>
                  <td data-label="Engines">{op.engines.join(", ")}</td>
                  <td data-label="Used by" class="num">{op.used_by.length ? plural(op.used_by.length, "model") : "-"}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

const shown = (value: unknown): string => (value === null || value === undefined ? "-" : typeof value === "string" ? value : JSON.stringify(value));

function OneOp({ op }: { op: Op }): JSX.Element {
  return (
    <>
      <p class="crumbs">
        <a href={link("ops")}>Ops</a>
      </p>
      <Title beside={<span class="muted">domain {op.domain}</span>}>{op.name}</Title>
      {op.document && <p class="lead">{op.document}</p>}
      <h2>Signature</h2>
      <Code text={op.signature} what="signature" />
      <div class="columns">
        <Tensors title="Inputs" tensors={op.inputs} />
        <Tensors title="Outputs" tensors={op.outputs} />
      </div>
      <h2>Attributes</h2>
      {op.attributes.length === 0 ? (
        <p class="muted">This op has none.</p>
      ) : (
        <div class="scroll">
          <table>
            <thead>
              <tr>
                <th scope="col">Name</th>
                <th scope="col">Type</th>
                <th scope="col">Default</th>
              </tr>
            </thead>
            <tbody>
              {op.attributes.map((attribute) => (
                <tr key={attribute.name}>
                  <th scope="row" class="mono">{attribute.name}</th>
                  <td>{attribute.type}</td>
                  <td class="mono">{attribute.required ? "required" : shown(attribute.default)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <h2>Where it runs</h2>
      <dl class="facts">
        <div><dt>Dtypes</dt><dd class="mono">{op.dtypes.join(" ") || "-"}</dd></div>
        <div><dt>Devices</dt><dd>{op.devices.join(", ") || "-"}</dd></div>
        <div><dt>Engines</dt><dd>{op.engines.join(", ") || "-"}</dd></div>
      </dl>
      <h2>Models that use it</h2>
      {op.used_by.length === 0 ? (
        <p class="muted">No model of the gateway uses this op.</p>
      ) : (
        <ul>
          {op.used_by.map(([model, version]) => (
            <li key={`${model}/${version}`}>
              <a href={link("models", model, version, "graph")}>{model} version {version}</a>
            </li>
          ))}
        </ul>
      )}
      <h2>Library</h2>
      <dl class="facts wide">
        <div><dt>File</dt><dd class="mono">{op.library || "-"}</dd></div>
        <div><dt>SHA-256</dt><dd class="mono wrap">{op.sha256 || "-"}</dd></div>
        <div><dt>Trusted by</dt><dd class="mono wrap">{op.trusted_by || "-"}</dd></div>
      </dl>
    </>
  );
}

function Tensors({ title, tensors }: { title: string; tensors: Op["inputs"] }): JSX.Element {
  return (
    <section>
      <h2>{title}</h2>
      {tensors.length === 0 ? (
        <p class="muted">Nothing is known of them.</p>
      ) : (
        <ul class="plain">
          {tensors.map((tensor) => (
            <li key={tensor.name}>
              <span class="mono">{tensor.name}</span> <span class="muted mono">{tensor.type}</span>
              {tensor.optional && " optional"}
              {tensor.variadic && " any number"}
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}
