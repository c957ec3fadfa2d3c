"""What engines and routers say of themselves in numbers: `/metrics` and `/v1/loads`, whatever version says it."""
