// Package systemd connects to the systemd of the node.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// Socket is systemd's private socket on a node.
const Socket = "/run/systemd/private"

// Connect talks to systemd itself: there is no bus in between that could be down. It needs root, and systemd does not answer a process
// outside of its PID namespace.
func Connect(ctx context.Context, socket string) (*dbus.Conn, error) {
	if _, err := os.Stat(socket); err != nil {
		return nil, fmt.Errorf("no systemd here: %w", err)
	}
	conn, err := dbus.NewConnection(func() (*godbus.Conn, error) {
		conn, err := godbus.Dial("unix:path="+socket, godbus.WithContext(ctx))
		if err != nil {
			return nil, err
		}
		if err := conn.Auth([]godbus.Auth{godbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return conn, nil
	})
	if err != nil {
		return nil, fmt.Errorf("systemd at %s: %w", socket, err)
	}
	return conn, nil
}
