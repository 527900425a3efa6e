package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/nvml"
)

// refuse says why no diagnostic may run, "" if one may. Level 2 and more take the GPUs from whoever uses them.
func (r *reader) refuse(ctx context.Context) (string, error) {
	if r.run && !r.force {
		mark := filepath.Join(r.plugin.StateDir, "maintenance")
		if _, err := os.Stat(mark); err != nil {
			return "", fmt.Errorf("no diag: the node is not under maintenance (%w); -force does without", err)
		}
	}
	if r.force {
		why, err := r.gpusRefuse(false)
		return why, err
	}
	holder, err := acceleratorHolder(ctx, r.podResources)
	if err != nil {
		return "", fmt.Errorf("no diag: which pods hold GPUs is not known: %w", err)
	}
	if holder != "" {
		return holder, nil
	}
	for end := time.Now().Add(r.idleFor); ; {
		why, err := r.gpusRefuse(true)
		if why != "" || err != nil {
			return why, err
		}
		left := time.Until(end)
		if left <= 0 {
			return "", nil
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(min(left, 5*time.Second)):
		}
	}
}

// gpusRefuse asks the driver: a GPU in MIG mode cannot be diagnosed, and one that is busy must not be.
func (r *reader) gpusRefuse(busyToo bool) (string, error) {
	reading, err := r.source.Read(nvml.Activity)
	if err != nil {
		return "", err
	}
	if reading.Unread != "" {
		return "", fmt.Errorf("no diag: NVML: %s", reading.Unread)
	}
	for _, g := range reading.GPUs {
		switch {
		case g.MIG:
			return g.Subject() + " is in MIG mode", nil
		case busyToo && g.Busy == nil:
			return g.Subject() + " does not say whether it is idle", nil
		case busyToo && *g.Busy:
			return g.Subject() + " is busy", nil
		}
	}
	return "", nil
}

// acceleratorHolder asks kubelet for a pod that holds an NVIDIA GPU: PodResourcesLister.List of
// k8s.io/kubelet/pkg/apis/podresources/v1, one gRPC call. A gRPC library would be most of this program.
func acceleratorHolder(ctx context.Context, socket string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{
		Protocols: protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}
	defer transport.CloseIdleConnections()
	// An empty message: not compressed, length 0.
	body := strings.NewReader("\x00\x00\x00\x00\x00")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/v1.PodResourcesLister/List", body)
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("TE", "trailers")
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return "", err
	}
	// An error may come without a body, and then its status is in the header.
	status := func(key string) string { return cmp.Or(resp.Trailer.Get(key), resp.Header.Get(key)) }
	if code := status("Grpc-Status"); resp.StatusCode != http.StatusOK || code != "0" {
		return "", fmt.Errorf("kubelet answered HTTP %d, gRPC %q %s", resp.StatusCode, code, status("Grpc-Message"))
	}
	if len(data) < 5 || data[0] != 0 || int(binary.BigEndian.Uint32(data[1:5])) != len(data)-5 {
		return "", errors.New("kubelet's answer is not one uncompressed message")
	}
	return holder(data[5:])
}

// Field numbers of podresources/v1/api.proto.
const (
	listPods         = 1 // ListPodResourcesResponse.pod_resources
	podName          = 1 // PodResources.name
	podNamespace     = 2
	podContainers    = 3
	containerDevices = 2 // ContainerResources.devices
	containerClaims  = 5 // ContainerResources.dynamic_resources
	deviceResource   = 1 // ContainerDevices.resource_name
)

// holder returns a sentence on a pod that holds an NVIDIA GPU, "" if none does. What a resource claim of a pod is for
// is not looked at: it may be a GPU.
func holder(response []byte) (string, error) {
	found := ""
	err := fields(response, func(number int, pod []byte) error {
		if number != listPods {
			return nil
		}
		var name, namespace string
		holds := false
		err := fields(pod, func(number int, value []byte) error {
			switch number {
			case podName:
				name = string(value)
			case podNamespace:
				namespace = string(value)
			case podContainers:
				return fields(value, func(number int, value []byte) error {
					switch number {
					case containerClaims:
						holds = true
					case containerDevices:
						return fields(value, func(number int, value []byte) error {
							holds = holds || number == deviceResource && strings.HasPrefix(string(value), "nvidia.com/")
							return nil
						})
					}
					return nil
				})
			}
			return nil
		})
		if holds {
			found = "pod " + namespace + "/" + name + " holds a GPU"
		}
		return err
	})
	return found, err
}

// fields calls f with each length-delimited field of a protobuf message and passes over numbers.
func fields(message []byte, f func(number int, value []byte) error) error {
	malformed := errors.New("malformed protobuf")
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return malformed
		}
		message = message[n:]
		value, n := binary.Uvarint(message)
		if n <= 0 {
			return malformed
		}
		const varint, delimited = 0, 2
		switch tag & 7 {
		case varint:
			message = message[n:]
		case delimited:
			if value > uint64(len(message)-n) {
				return malformed
			}
			if err := f(int(tag>>3), message[n:n+int(value)]); err != nil {
				return err
			}
			message = message[n+int(value):]
		default:
			return malformed
		}
	}
	return nil
}
