package observe

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// A person pauses while the watch of the remediator is late: no Job is created. And a pause that has just ended, by what is live alone, holds
// for as long as the cache shows it.
func TestAPauseThatOneOfTwoReadersShowsHolds(t *testing.T) {
	none := fake.NewClientBuilder().Build()
	paused := fake.NewClientBuilder().WithObjects(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: conditions.PauseConfigMap}, Data: map[string]string{"reason": "network work"},
	}).Build()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	for name, test := range map[string]struct {
		r    Reader
		live bool
		want string
	}{
		"the cache is late":                {Reader{Cache: none, Live: paused, Namespace: "pitcrew"}, true, "network work"},
		"and nothing is done by it":        {Reader{Cache: none, Live: paused, Namespace: "pitcrew"}, false, ""},
		"the end of it is not seen":        {Reader{Cache: paused, Live: none, Namespace: "pitcrew"}, true, "network work"},
		"there is none":                    {Reader{Cache: none, Live: none, Namespace: "pitcrew"}, true, ""},
		"another namespace has such a one": {Reader{Cache: none, Live: paused, Namespace: "other"}, true, ""},
	} {
		f, err := test.r.Facts(t.Context(), n, test.live)
		if err != nil || f.Paused != test.want {
			t.Errorf("%s: %q, %v", name, f.Paused, err)
		}
	}
}
