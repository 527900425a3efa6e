package cluster

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"

	"k8s.io/client-go/rest"
)

// Proxy is a way to the API server on which every answer is seen. Whoever goes through it keeps the permissions of its own credentials.
type Proxy struct{ server *httptest.Server }

// StartProxy starts a proxy. It calls answered with every answer before the client gets it, also if that client has gone since it sent a
// write: the API server may have carried it out.
func (c *Cluster) StartProxy(answered func(*http.Response)) (*Proxy, error) {
	return c.StartProxyThrough(func(next http.RoundTripper) http.RoundTripper {
		return RoundTripper(func(request *http.Request) (*http.Response, error) {
			if request.Method != http.MethodGet {
				request = request.WithContext(context.WithoutCancel(request.Context()))
			}
			answer, err := next.RoundTrip(request)
			if err == nil {
				answered(answer)
			}
			return answer, err
		})
	})
}

// RoundTripper is a function that is an [http.RoundTripper].
type RoundTripper func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f RoundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// StartProxyThrough starts a proxy. What wrap makes of the way to the API server carries every request: it may delay a request, refuse it
// or, by a panic with [http.ErrAbortHandler], lose its answer.
func (c *Cluster) StartProxyThrough(wrap func(http.RoundTripper) http.RoundTripper) (*Proxy, error) {
	return c.startProxy(wrap, false)
}

// StartHTTP2Proxy is [Cluster.StartProxyThrough] over HTTP/2, as the API server itself: all requests of a client share one connection.
func (c *Cluster) StartHTTP2Proxy(wrap func(http.RoundTripper) http.RoundTripper) (*Proxy, error) {
	return c.startProxy(wrap, true)
}

func (c *Cluster) startProxy(wrap func(http.RoundTripper) http.RoundTripper, http2 bool) (*Proxy, error) {
	to, err := url.Parse(c.Admin.Host)
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	transport, err := rest.TransportFor(rest.AnonymousClientConfig(c.Admin))
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	quiet := log.New(io.Discard, "", 0) // whoever is killed breaks its connections
	// clientcmd sends no token to a server without TLS.
	server := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:     wrap(transport),
		FlushInterval: -1, // watches
		ErrorLog:      quiet,
	})
	server.Config.ErrorLog = quiet
	server.EnableHTTP2 = http2
	server.StartTLS()
	return &Proxy{server}, nil
}

// Close ends the proxy and all connections through it.
func (p *Proxy) Close() {
	p.server.CloseClientConnections()
	p.server.Close()
}

func (p *Proxy) port() string {
	_, port, _ := net.SplitHostPort(p.server.Listener.Addr().String())
	return port
}

// Redirect has a client go through the proxy.
func (p *Proxy) Redirect(cfg *rest.Config) {
	cfg.Host = p.server.URL
	cfg.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
}
