package components

import "testing"

func TestTooLittleRoomIsNamed(t *testing.T) {
	for free, want := range map[uint64][2]string{
		5 << 30: {"", "/tmp has 5.0 GiB free, builds and tests need 6 GiB; `go clean -cache` frees Go's build cache, which is then built anew"},
		6 << 30: {"/tmp has 6.0 GiB free; a clean clone may need 20 GiB", ""}, 20 << 30: {"", ""},
	} {
		warning, err := judgeRoom("/tmp", free)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if warning != want[0] || text != want[1] {
			t.Errorf("%d bytes: warning %q, error %q", free, warning, text)
		}
	}
}

func TestThisMachineHasRoomToTest(t *testing.T) {
	if err := CheckRoom(t.Context()); err != nil {
		t.Error(err)
	}
}
