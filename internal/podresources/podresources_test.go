package podresources

import (
	"strings"
	"testing"
)

func FuzzHolders(f *testing.F) {
	f.Add([]byte("\n\x1c\n\x01p\x12\x02ns\x1a\x13\n\x01c\x12\x0e\n\x0cnvidia.com/g"))
	f.Fuzz(func(t *testing.T, response []byte) {
		pods, err := holders(response, "nvidia.com/")
		if n, err := offered(response, func(string) bool { return true }); err == nil && n > len(response) {
			t.Errorf("%d devices in %d bytes", n, len(response))
		}
		for _, pod := range pods {
			if err == nil && !strings.Contains(pod, "/") {
				t.Errorf("got %q", pod)
			}
		}
	})
}

func TestHoldersOfAVendor(t *testing.T) {
	const pod = "\n\x1c\n\x01p\x12\x02ns\x1a\x13\n\x01c\x12\x0e\n\x0cnvidia.com/g"
	for prefix, want := range map[string]string{"nvidia.com/": "ns/p,ns/p", "metax-tech.com/": ""} {
		got, err := holders([]byte(pod+pod), prefix)
		if err != nil || strings.Join(got, ",") != want {
			t.Errorf("%s: got %q, %v, want %s", prefix, got, err, want)
		}
	}
	if got, err := holders([]byte(pod[:9]), "nvidia.com/"); err == nil {
		t.Errorf("half a message is %q", got)
	}
}
