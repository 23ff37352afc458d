import "./styles.css";
import { render } from "preact";
import type { JSX } from "preact";
import { Empty, Title } from "./parts";
import { Model } from "./pages/model";
import { Models } from "./pages/models";
import { Ops } from "./pages/ops";
import { Requests } from "./pages/requests";
import { Server } from "./pages/server";
import { link, route } from "./route";
import { Shell } from "./shell";
import { follow } from "./store";

function Page(): JSX.Element {
  const { page, parts } = route.value;
  if (page === "models") return parts[0] ? <Model key={parts.slice(0, 2).join("/")} /> : <Models />;
  if (page === "requests") return <Requests />;
  if (page === "ops") return <Ops />;
  if (page === "server") return <Server />;
  return (
    <>
      <Title>No such page</Title>
      <Empty title={`The console has no page ${page}.`}>
        <a href={link("models")}>Models</a>
      </Empty>
    </>
  );
}

const root = document.getElementById("app");
if (root) {
  render(
    <Shell>
      <Page />
    </Shell>,
    root,
  );
  void follow();
}
