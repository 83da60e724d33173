// The official TypeScript SDK 1 with authorization: `node tokens_1.mjs server|client URL`. It
// does what ../python_1_tokens.py does, with the same lines on standard input and output.

import { once } from "node:events";
import { createInterface } from "node:readline";

import express from "express";
import { createRemoteJWKSet, jwtVerify } from "jose";
import { UnauthorizedError } from "@modelcontextprotocol/sdk/client/auth.js";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { InvalidTokenError } from "@modelcontextprotocol/sdk/server/auth/errors.js";
import { requireBearerAuth } from "@modelcontextprotocol/sdk/server/auth/middleware/bearerAuth.js";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";

const METADATA = "/.well-known/oauth-protected-resource/mcp";
const REDIRECT = "http://127.0.0.1:8765/callback";

async function serve(issuer) {
  const app = express();
  const listener = app.listen(0, "127.0.0.1");
  await once(listener, "listening");
  const origin = `http://127.0.0.1:${listener.address().port}`;
  const resource = `${origin}/mcp`;
  const keys = createRemoteJWKSet(new URL(`${issuer}/jwks`));
  const verifier = {
    async verifyAccessToken(token) {
      try {
        const { payload } = await jwtVerify(token, keys, { issuer, audience: resource });
        const scopes = payload.scope.split(" ");
        return { token, clientId: payload.client_id, scopes, expiresAt: payload.exp };
      } catch (error) {
        throw new InvalidTokenError(String(error));
      }
    },
  };
  app.get(METADATA, (_, response) =>
    response.json({ resource, authorization_servers: [issuer], scopes_supported: ["files"] }),
  );
  app.use(
    "/mcp",
    requireBearerAuth({
      verifier,
      requiredScopes: ["files"],
      resourceMetadataUrl: `${origin}${METADATA}`,
    }),
  );
  app.use(express.json());
  app.post("/mcp", async (request, response) => {
    const server = new McpServer({ name: "protected", version: "1" });
    server.tool("whoami", "The scopes of the token.", {}, async (_, { authInfo }) => ({
      content: [{ type: "text", text: `scopes ${authInfo.scopes.join(" ")}` }],
    }));
    const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined });
    response.on("close", () => transport.close());
    await server.connect(transport);
    await transport.handleRequest(request, response, request.body);
  });
  app.all("/mcp", (_, response) => response.status(405).end());
  console.log(resource);
}

/** What the SDK keeps for a login. */
class Login {
  redirectUrl = REDIRECT;
  clientMetadata = {
    client_name: "TypeScript SDK",
    redirect_uris: [REDIRECT],
    grant_types: ["authorization_code", "refresh_token"],
    response_types: ["code"],
    token_endpoint_auth_method: "none",
  };
  clientInformation = () => this.client;
  saveClientInformation = (client) => (this.client = client);
  tokens = () => this.kept;
  saveTokens = (tokens) => (this.kept = tokens);
  codeVerifier = () => this.verifier;
  saveCodeVerifier = (verifier) => (this.verifier = verifier);
  redirectToAuthorization = (url) => console.log(`authorize ${url.href}`);
}

async function call(url) {
  const authProvider = new Login();
  const connect = async () => {
    const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider });
    const client = new Client({ name: "typescript", version: "1" });
    try {
      await client.connect(transport);
      return client;
    } catch (error) {
      if (!(error instanceof UnauthorizedError)) throw error;
    }
    const input = createInterface({ input: process.stdin });
    const [line] = await once(input, "line");
    input.close();
    await transport.finishAuth(new URL(line).searchParams.get("code"));
    return connect();
  };
  const client = await connect();
  const result = await client.callTool({ name: "whoami", arguments: {} });
  console.log(`called ${result.content[0].text}`);
  await client.close();
}

const [role, url] = process.argv.slice(2);
await { server: serve, client: call }[role](url);
