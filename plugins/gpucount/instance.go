package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/instances"
)

// instanceType returns the type of this cloud instance, "" if it is not known. EC2's Nitro instances name
// their type in DMI; the older ones have to be asked for it.
func (r *reader) instanceType(ctx context.Context) string {
	if r.instance != "" {
		return r.instance
	}
	product := instances.Product(r.source.Sysfs)
	// A machine without DMI has no vendor.
	vendor, _ := os.ReadFile(filepath.Join(r.source.Sysfs, "class/dmi/id/sys_vendor"))
	if strings.TrimSpace(string(vendor)) == "Xen" && strings.HasPrefix(product, "HVM") {
		// Not an EC2 instance, or one that does not let pods ask: nothing is expected then.
		if answer, err := askIMDS(ctx, r.imds); err == nil {
			return answer
		}
	}
	return product
}

// askIMDS asks EC2's instance metadata service, version 2, for the instance type. net/http would be most of this program.
func askIMDS(ctx context.Context, address string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	token, err := request(ctx, address, "PUT /latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds: 60")
	if err != nil {
		return "", err
	}
	return request(ctx, address, "GET /latest/meta-data/instance-type", "X-aws-ec2-metadata-token: "+token)
}

// request makes one HTTP request with one header line and returns the body of a good answer.
func request(ctx context.Context, address, what, header string) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return "", err
		}
	}
	// HTTP/1.0 is answered in one piece, which ends with the connection.
	if _, err := fmt.Fprintf(conn, "%s HTTP/1.0\r\nHost: %s\r\nContent-Length: 0\r\n%s\r\n\r\n", what, address, header); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(io.LimitReader(conn, 64<<10))
	if err != nil {
		return "", err
	}
	head, body, found := strings.Cut(string(answer), "\r\n\r\n")
	status, _, _ := strings.Cut(head, "\r\n")
	if !found || !strings.Contains(status, " 200 ") || body == "" || strings.ContainsAny(body, "\r\n") {
		return "", errors.New("instance metadata service: " + status)
	}
	return body, nil
}
