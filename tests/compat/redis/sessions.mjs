// A limiter and sessions of Node.js, on the three replicas of a cluster whose addresses are the arguments.

import assert from "node:assert/strict";
import { RedisStore } from "connect-redis";
import express from "express";
import session from "express-session";
import { Redis } from "ioredis";
import { RateLimiterRedis } from "rate-limiter-flexible";
import { createClient } from "redis";

const ports = process.argv.slice(2).map((address) => Number(address.split(":").pop()));

// Both clients of Node.js, on different replicas: a limit counts what was asked of any of them.
async function limiter() {
  const old = new Redis({ port: ports[0], host: "127.0.0.1", enableOfflineQueue: false, lazyConnect: true });
  const other = createClient({ url: `redis://127.0.0.1:${ports[1]}` });
  await Promise.all([old.connect(), other.connect()]);
  const options = { keyPrefix: "flexible", points: 5, duration: 60, blockDuration: 90 };
  const limiters = [
    new RateLimiterRedis({ ...options, storeClient: old }),
    new RateLimiterRedis({ ...options, storeClient: other, useRedisPackage: true }),
  ];
  const asked = Array.from({ length: 12 }, (_, number) => limiters[number % 2].consume("user"));
  const outcomes = await Promise.allSettled(asked);
  for (const { reason } of outcomes.filter(({ status }) => status === "rejected")) {
    assert(!(reason instanceof Error), reason);
  }
  assert.equal(outcomes.filter(({ status }) => status === "fulfilled").length, 5);
  assert((await limiters[1].get("user")).msBeforeNext > 60_000, "it is blocked for longer than it counts");
  await limiters[0].delete("user");
  await limiters[1].penalty("user", 3);
  await limiters[0].reward("user", 1);
  assert.equal((await limiters[1].get("user")).consumedPoints, 2);
  old.disconnect();
  await other.close();
}

// An application on each replica; one browser, whose requests reach all of them in turn.
async function sessions() {
  const clients = ports.map((port) => createClient({ url: `redis://127.0.0.1:${port}` }));
  await Promise.all(clients.map((client) => client.connect()));
  const stores = clients.map((client) => new RedisStore({ client, ttl: 60 }));
  const servers = await Promise.all(
    stores.map(async (store) => {
      const app = express();
      app.use(session({ store, secret: "compat", resave: false, saveUninitialized: false }));
      app.get("/count", (request, response) => {
        request.session.count = (request.session.count ?? 0) + 1;
        response.send(String(request.session.count));
      });
      app.get("/end", (request, response) => request.session.destroy(() => response.send("ended")));
      const server = app.listen(0, "127.0.0.1");
      await new Promise((resolve) => server.once("listening", resolve));
      return server;
    }),
  );
  let cookie = "";
  const ask = async (number, path) => {
    const { port } = servers[number % servers.length].address();
    const response = await fetch(`http://127.0.0.1:${port}${path}`, { headers: { cookie } });
    cookie = response.headers.get("set-cookie")?.split(";")[0] ?? cookie;
    return response.text();
  };
  for (let number = 1; number < 10; number += 1) {
    assert.equal(await ask(number, "/count"), String(number));
  }
  assert.equal(await stores[1].length(), 1);
  assert.equal((await stores[2].all())[0].count, 9);
  assert.equal(await ask(0, "/end"), "ended");
  assert.deepEqual(await stores[1].ids(), []);
  servers.forEach((server) => server.close());
  await Promise.all(clients.map((client) => client.close()));
}

for (const test of [limiter, sessions]) {
  await test();
  console.log(`node: ${test.name} ok`);
}
process.exit(0);
