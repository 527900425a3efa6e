package kmsg_test

import (
	"testing"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
	"github.com/pitcrew-dev/pitcrew/internal/kmsg/kmsgtest"
)

func TestOnlyTheReportOfAFatalSignalStartsWithAFile(t *testing.T) {
	const file = "NVRM: Xid (PCI:0000:4e:00): 79, x"
	for _, body := range kmsgtest.About("process", file) {
		if want := len(body) > len(file) && body[:len(file)] == file; kmsg.StartsWithFile(body) != (want || body == "process/4711: potentially unexpected fatal signal 11.") {
			t.Errorf("%q: %v", body, !want)
		}
	}
	if kmsg.StartsWithFile(file) {
		t.Errorf("%q is the driver's", file)
	}
}
