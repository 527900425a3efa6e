// Package podresources asks the kubelet of this node which pods hold accelerators, and how many it offers.
package podresources

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// Holders asks the kubelet at a socket which pods hold a device of a vendor, as namespace/name: those with an extended resource whose
// name begins with prefix, such as "nvidia.com/", and those with a resource claim. What a claim is for is not looked at: it may be a GPU.
//
// It is PodResourcesLister.List of k8s.io/kubelet/pkg/apis/podresources/v1, one gRPC call. A gRPC library would be most of a plugin.
func Holders(ctx context.Context, socket, prefix string) ([]string, error) {
	response, err := call(ctx, socket, "List")
	if err != nil {
		return nil, err
	}
	return holders(response, prefix)
}

// Offered returns how many devices the kubelet offers to pods of the extended resources that counts accepts by their names: those that a
// device plugin has registered and calls healthy, whether pods hold them or not (PodResourcesLister.GetAllocatableResources).
func Offered(ctx context.Context, socket string, counts func(resource string) bool) (int, error) {
	response, err := call(ctx, socket, "GetAllocatableResources")
	if err != nil {
		return 0, err
	}
	return offered(response, counts)
}

// call returns the message with which the kubelet answers an empty one.
func call(ctx context.Context, socket, method string) ([]byte, error) {
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
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/v1.PodResourcesLister/"+method, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("TE", "trailers")
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return nil, err
	}
	// An error may come without a body, and then its status is in the header.
	status := func(key string) string { return cmp.Or(resp.Trailer.Get(key), resp.Header.Get(key)) }
	if code := status("Grpc-Status"); resp.StatusCode != http.StatusOK || code != "0" {
		return nil, fmt.Errorf("kubelet answered HTTP %d, gRPC %q %s", resp.StatusCode, code, status("Grpc-Message"))
	}
	if len(data) < 5 || data[0] != 0 || int(binary.BigEndian.Uint32(data[1:5])) != len(data)-5 {
		return nil, errors.New("kubelet's answer is not one uncompressed message")
	}
	return data[5:], nil
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
	deviceID         = 2 // ContainerDevices.device_ids

	allocatableDevices = 1 // AllocatableResourcesResponse.devices
)

func offered(response []byte, counts func(string) bool) (int, error) {
	devices := map[string]bool{}
	err := fields(response, func(number int, value []byte) error {
		if number != allocatableDevices {
			return nil
		}
		var resource string
		var ids []string
		err := fields(value, func(number int, value []byte) error {
			switch number {
			case deviceResource:
				resource = string(value)
			case deviceID:
				ids = append(ids, string(value))
			}
			return nil
		})
		for _, id := range ids {
			// A device with memory on two NUMA nodes is listed for each.
			if counts(resource) {
				devices[resource+"/"+id] = true
			}
		}
		return err
	})
	return len(devices), err
}

func holders(response []byte, prefix string) ([]string, error) {
	var found []string
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
							holds = holds || number == deviceResource && strings.HasPrefix(string(value), prefix)
							return nil
						})
					}
					return nil
				})
			}
			return nil
		})
		if holds {
			found = append(found, namespace+"/"+name)
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
