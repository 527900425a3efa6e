package node

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/remediator/node/nodetest"
)

// BenchmarkSlim says what the cache keeps of a node, decoded as the API server sends it.
func BenchmarkSlim(b *testing.B) {
	var kept []any
	var before, after runtime.MemStats
	raws, slimmer := [][]byte{}, NewSlimmer(256, nil)
	for i := range 200 {
		raw, err := nodetest.Realistic(i).Marshal()
		if err != nil {
			b.Fatal(err)
		}
		raws = append(raws, raw)
	}
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := 0; b.Loop(); i++ {
		n := &corev1.Node{}
		if err := n.Unmarshal(raws[i%len(raws)]); err != nil {
			b.Fatal(err)
		}
		n.UID = types.UID(fmt.Sprint(i)) // each is another node
		slim, err := slimmer.Slim(n)
		if err != nil {
			b.Fatal(err)
		}
		kept = append(kept, slim)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(len(kept)), "kept-B/node")
	runtime.KeepAlive(kept)
}
