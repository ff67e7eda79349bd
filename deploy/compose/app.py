"""A sample app for compose.yaml: prints each request that reaches it, and answers 200."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class App(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        print(self.command, self.path, self.headers.get("Umavez-Key", "-"), body.decode(errors="replace"))
        text = b"done\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("0.0.0.0", 3000), App).serve_forever()
