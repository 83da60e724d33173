// An OpenID Connect provider at a free port, with pages on which any user can log in. It prints its
// issuer. Its tokens are JWTs for the resource that was requested.
import http from "node:http";
import { Provider } from "oidc-provider";

const server = http.createServer();
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    scopes: ["openid", "offline_access", "files", "admin"],
    pkce: { required: () => true },
    rotateRefreshToken: true,
    features: {
      registration: { enabled: true },
      dPoP: { enabled: true },
      resourceIndicators: {
        enabled: true,
        useGrantedResource: () => true,
        getResourceServerInfo: () => ({
          scope: "files admin",
          accessTokenFormat: "jwt",
          accessTokenTTL: 3600,
        }),
      },
    },
  });
  server.on("request", provider.callback());
  console.log(issuer);
});
