from brim.cli.main import main

raise SystemExit(main())
