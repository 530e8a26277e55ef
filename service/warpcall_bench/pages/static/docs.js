// Starts Swagger UI on the page /docs.
"use strict";

SwaggerUIBundle({
  url: document.querySelector("#swagger-ui").dataset.url,
  dom_id: "#swagger-ui",
  deepLinking: true,
  docExpansion: "list",
  defaultModelsExpandDepth: -1,
});
